"""The step of a round in 8-bit numbers: writes the new model, the step as clients fetch it, and what rounding changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from puf_common.tensors.encodings import compacted
from puf_common.tensors.finite import all_finite
from puf_common.tensors.manifest import Manifest
from puf_common.tensors.quantised import LARGEST_VALUE, decode, nearest
from puf_server.aggregation.fold import (
    Block,
    Contribution,
    Source,
    Space,
    average,
    computed,
    in_order,
    not_finite,
    read_block,
)

Write = Callable[[memoryview], object]


class Writers(NamedTuple):
    model: Write
    step: Write
    error: Write


class _Rounded(NamedTuple):
    model: memoryview
    step: memoryview
    error: memoryview


def rounded_step(
    manifest: Manifest,
    base: Source,
    contributions: Sequence[Contribution],
    error: Source | None,
    writers: Writers,
    *,
    server_lr: float = 1.0,
) -> None:
    """Writes all three in manifest order. The error has the layout of an update; it is zero where nothing is rounded."""
    ordered = sorted(contributions, key=lambda c: (c.client.encode(), c.part))
    n = sum(c.samples for c in ordered)
    sources = [c.source for c in ordered] + ([] if error is None else [error])

    def compute(block: Block, space: Space) -> _Rounded:
        # Zeros of buffers are read, too: every byte of a file is hashed.
        old = None if error is None else read_block(error, block.there, block.start, block.size)
        if not compacted(block.here):
            w = computed(block, base, ordered, n, server_lr, space)
            same = w.data.cast("B")
            return _Rounded(same, same, np.zeros(block.size, block.there.dtype).data.cast("B"))
        w = read_block(base, block.here, block.start, block.size)
        total = average(block, ordered, n, space)
        np.multiply(total, server_lr, out=total)
        if old is not None:
            np.add(total, old, out=total)
        with np.errstate(over="ignore", invalid="ignore"):  # checked in the next lines
            wanted = total.astype(np.float32)
            large = np.flatnonzero(~(np.abs(wanted) <= LARGEST_VALUE))
            made = _rounded(w, total, wanted) if not large.size else None
        if made is None or not all_finite(new := np.frombuffer(made.model, np.float32)):
            raise not_finite(block, large if made is None else np.flatnonzero(~np.isfinite(new)), ordered)
        return made

    for made in in_order(compute, manifest, base, sources):
        for write, part in zip(writers, made, strict=True):
            write(part)


def _rounded(w: NDArray[Any], total: NDArray[np.float64], wanted: NDArray[np.float32]) -> _Rounded:
    """One block: w + q, q, and the error. `total` is the wanted step and is overwritten."""
    step = nearest(wanted)
    new = np.add(w, decode(step))
    np.add(total, w, out=total)
    np.subtract(total, new, out=total)
    return _Rounded(new.data.cast("B"), step, total.astype(np.float32).data.cast("B"))
