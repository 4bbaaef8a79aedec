"""Rounds whose method replaces the weighted sum: reads blocks of models and updates, and lets the method combine them.

Blocks are small, so that memory does not grow with clients or parameters. Updates come in the order of client names, so
that the result does not depend on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum, sqrt

import numpy as np

from puf_common.tensors.finite import all_finite
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorRange
from puf_server.aggregation.fold import Contribution, NotFinite, Source, read_block
from puf_server.core.methods.blocks import Rule, TensorBlock, UpdateBlock

_BLOCK = 1 << 16


def combine(
    manifest: Manifest,
    base: Source,
    others: Mapping[str, Source],
    updates: Sequence[Contribution],
    write: Callable[[memoryview], object],
    make_rule: Callable[[Sequence[UpdateBlock]], Rule],
    *,
    measure: bool = False,
) -> None:
    """Writes the new model in manifest order. `measure` gives the rule the norms of each update."""
    ordered = sorted(updates, key=lambda c: c.client.encode())
    layouts = [c.layout or manifest for c in ordered]
    known = [
        UpdateBlock(
            client=c.client,
            samples=c.samples,
            u=None,
            norms=lengths(c.source, layout.ranges(UPDATE)) if measure else (),
        )
        for c, layout in zip(ordered, layouts, strict=True)
    ]
    rule = make_rule(known)
    places = [{s.spec.name: s for s in layout.ranges(UPDATE)} for layout in layouts]
    parameter = -1
    for tensor in manifest.ranges(MODEL):
        parameter += tensor.spec.role == "parameter"
        for start in range(0, tensor.spec.size, _BLOCK):
            count = min(_BLOCK, tensor.spec.size - start)
            w = read_block(base, tensor, start, count)
            blocks = [
                replace(update, u=read_block(c.source, place[tensor.spec.name], start, count))
                if tensor.spec.name in place
                else update
                for c, update, place in zip(ordered, known, places, strict=True)
            ]
            block = TensorBlock(
                tensor=tensor.spec,
                parameter=parameter if tensor.spec.role == "parameter" else -1,
                w=w,
                others={name: read_block(source, tensor, start, count) for name, source in others.items()},
                updates=blocks,
            )
            with np.errstate(over="ignore", invalid="ignore"):  # checked below
                made = rule(block).astype(w.dtype)
            if tensor.spec.floating and not all_finite(made):
                raise NotFinite(f"tensor {tensor.spec.name} would no longer be finite", tensor=tensor.spec.name)
            write(np.ascontiguousarray(made).data.cast("B"))


def lengths(source: Source, ranges: Iterable[TensorRange]) -> tuple[float, ...]:
    """L2 norms of the parameters among the ranges, in their order, without buffers."""
    found = []
    for tensor in ranges:
        if tensor.spec.role == "parameter":
            blocks = (
                np.square(
                    read_block(source, tensor, start, min(_BLOCK, tensor.spec.size - start)), dtype=np.float64
                ).sum()
                for start in range(0, tensor.spec.size, _BLOCK)
            )
            found.append(sqrt(fsum(blocks)))
    return tuple(found)
