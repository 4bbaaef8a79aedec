"""PUF inside a Flower app: `puf_flower.mod.PufMod` for the ClientApp, `puf_flower.strategy.PufStrategy` for the ServerApp."""
