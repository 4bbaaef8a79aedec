"""PUF inside an NVIDIA FLARE job: `puf_flare.filters.NegateFilter` for the leaving site, `puf_flare.aggregator.PufAggregator`."""
