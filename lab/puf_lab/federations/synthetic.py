"""Random images in the shape of a dataset, for `puf-lab smoke`: a data function without files."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from puf_client.data import ClientData, DataContext
from puf_common.seeds import derive

NAME = "puf_lab.federations.synthetic:data"


def data(ctx: DataContext) -> ClientData:
    """Samples of this shard, each a group of its own, and as many to hold out.

    Options: samples, channels, size, classes, masks (a class for every pixel).
    """
    samples = ctx.option("samples", 32)
    train, holdout = (_images(ctx, samples, name) for name in (ctx.shard, f"holdout-{ctx.shard}"))
    ids, groups = ([f"{kind}-{ctx.shard}-{i}" for i in range(samples)] for kind in "sg")
    return ClientData(train, holdout=holdout, ids=ids, groups=groups)


def test_set(ctx: DataContext) -> Dataset[Any]:
    """As many samples of no client."""
    return _images(ctx, ctx.option("samples", 32), ctx.shards)


def _images(ctx: DataContext, samples: int, shard: int | str) -> TensorDataset:
    generator = torch.Generator().manual_seed(derive(ctx.seed, "synthetic", shard))
    size, classes = ctx.option("size", 32), ctx.option("classes", 10)
    x = torch.randn(samples, ctx.option("channels", 3), size, size, generator=generator)
    shape = (samples, size, size) if ctx.option("masks", False) else (samples,)
    return TensorDataset(x, torch.randint(classes, shape, generator=generator))
