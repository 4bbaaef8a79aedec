"""Ordinary rounds of a server that steps by moments: the model, m and v are written block by block.

One thread computes the blocks in order. The moments are files of the history: they take effect with the round's commit, and
a fold that is repeated after a crash reads the same moments and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from puf_common.tensors.finite import all_finite
from puf_common.tensors.manifest import Manifest
from puf_server.aggregation.fold import (
    Block,
    Contribution,
    NotFinite,
    Source,
    Space,
    average,
    blocks,
    merge,
    read_block,
)
from puf_server.core import server_optimizer
from puf_server.core.config import Plan

Write = Callable[[memoryview], object]


class Moments(NamedTuple):
    """The stored m and v."""

    first: Source
    second: Source


def step(
    manifest: Manifest,
    base: Source,
    contributions: Sequence[Contribution],
    moments: Moments | None,
    plan: Plan,
    writers: tuple[Write, Write, Write],
) -> None:
    """Writes the new model, m and v in manifest order. Moments have the layout of an update; buffers are zero there."""
    ordered = sorted(contributions, key=lambda c: (c.client.encode(), c.part))
    n = sum(c.samples for c in ordered)
    space = Space()
    for block in blocks(manifest):
        w = read_block(base, block.here, block.start, block.size)
        m, v = _read(moments, block)
        if block.here.spec.role == "parameter":
            with np.errstate(over="ignore", invalid="ignore"):  # checked below
                change, m, v = server_optimizer.stepped(plan, average(block, ordered, n, space), m, v)
                w = block.here.spec.stored(w.astype(np.float64) + change)
        else:
            w, m, v = merge(w, block.there, block.start, ordered), None, None
        made = [block.here.spec.numbers(w), *(np.zeros(block.size) if x is None else x for x in (m, v))]
        if block.here.spec.floating and not all(all_finite(x) for x in made):
            raise NotFinite(f"tensor {block.here.spec.name} would no longer be finite", tensor=block.here.spec.name)
        moments_made = [values.astype(block.there.dtype) for values in made[1:]]
        for values, write in zip((w, *moments_made), writers, strict=True):
            write(np.ascontiguousarray(values).data.cast("B"))


def _read(moments: Moments | None, block: Block) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    # Zeros of buffers are read, too: every byte of a file is hashed.
    if moments is None:
        return None, None
    m, v = (read_block(source, block.there, block.start, block.size) for source in moments)
    return m, v
