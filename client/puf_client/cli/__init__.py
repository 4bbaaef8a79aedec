"""The command `puf-client`."""
