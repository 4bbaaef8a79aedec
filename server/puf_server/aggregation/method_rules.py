"""Rounds whose method replaces the weighted sum: reads blocks of models and updates, and lets the method combine them.

Blocks are small, so that memory does not grow with clients or parameters. Updates come in the order of client names, so
that the result does not depend on the order of arrival.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_common.tensors.finite import all_finite
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorRange
from puf_server.aggregation.fold import Contribution, NotFinite, Source, read_block
from puf_server.core.methods.blocks import Rule, TensorBlock, UpdateBlock
from puf_server.core.methods.products import Products, vector_of

_BLOCK = 1 << 16
# Numbers of all vectors that are in memory at a time for their products.
_PRODUCT_NUMBERS = 1 << 22


class Vectors:
    """The base model, the other models and the updates of one step."""

    def __init__(
        self, manifest: Manifest, base: Source, others: Mapping[str, Source], updates: Sequence[Contribution]
    ) -> None:
        self._manifest = manifest
        self._base = base
        self._others = others
        self._ordered = sorted(updates, key=lambda c: (c.client.encode(), c.part))
        self._places = [{s.spec.name: s for s in (c.layout or manifest).ranges(UPDATE)} for c in self._ordered]
        # Without values.
        self.updates = tuple(
            UpdateBlock(client=c.client, samples=c.samples, u=None, part=c.part, target=c.target) for c in self._ordered
        )

    def measured(self) -> tuple[UpdateBlock, ...]:
        """The updates with their norms."""
        return tuple(
            replace(update, norms=lengths(c.source, (c.layout or self._manifest).ranges(UPDATE)))
            for update, c in zip(self.updates, self._ordered, strict=True)
        )

    def products(self) -> Products:
        """The inner products of all vectors, in one pass. The order of the sums is fixed, so the bits are, too."""
        names = (*(vector_of(update) for update in self.updates), *sorted(self._others))
        total = np.zeros((len(names), len(names)), np.float64)
        size = max(1, min(_BLOCK, _PRODUCT_NUMBERS // max(1, len(names))))
        for tensor in self._manifest.ranges(MODEL):
            if tensor.spec.role != "parameter":
                continue
            for start in range(0, tensor.spec.size, size):
                vectors = self._vectors(tensor, start, min(size, tensor.spec.size - start))
                # Not a matrix product: the bits of BLAS depend on its number of threads.
                total += np.einsum("ik,jk->ij", vectors, vectors, optimize=False)
        return Products(names, tuple(tuple(float(x) for x in row) for row in total))

    def combine(
        self,
        rule: Rule,
        write: Callable[[memoryview], object],
        updates: Sequence[UpdateBlock] | None = None,
        noise: bytes = b"",
    ) -> None:
        """Writes the new model in manifest order.

        `updates` are the measured ones if the rule reads norms. `noise` is the secret seed if it adds noise.
        """
        parameter = -1
        for tensor in self._manifest.ranges(MODEL):
            parameter += tensor.spec.role == "parameter"
            for start in range(0, tensor.spec.size, _BLOCK):
                count = min(_BLOCK, tensor.spec.size - start)
                w = read_block(self._base, tensor, start, count)
                block = TensorBlock(
                    tensor=tensor.spec,
                    parameter=parameter if tensor.spec.role == "parameter" else -1,
                    w=w,
                    others={name: read_block(source, tensor, start, count) for name, source in self._others.items()},
                    updates=[
                        replace(update, u=u)
                        for update, u in zip(updates or self.updates, self._values(tensor, start, count), strict=True)
                    ],
                    noise=normal(noise, tensor, start, count) if noise else None,
                )
                with np.errstate(over="ignore", invalid="ignore"):  # checked below
                    made = tensor.spec.stored(rule(block))
                if tensor.spec.floating and not all_finite(tensor.spec.numbers(made)):
                    raise NotFinite(f"tensor {tensor.spec.name} would no longer be finite", tensor=tensor.spec.name)
                write(np.ascontiguousarray(made).data.cast("B"))

    def _values(self, tensor: TensorRange, start: int, count: int) -> list[NDArray[Any] | None]:
        """The values of every update; None where it leaves the tensor out."""
        return [
            read_block(c.source, place[tensor.spec.name], start, count) if tensor.spec.name in place else None
            for c, place in zip(self._ordered, self._places, strict=True)
        ]

    def _vectors(self, tensor: TensorRange, start: int, count: int) -> NDArray[np.float64]:
        """One row for each vector."""
        rows = np.zeros((len(self._ordered) + len(self._others), count), np.float64)
        for row, u in zip(rows, self._values(tensor, start, count), strict=False):
            if u is not None:
                row[:] = u
        if self._others:
            w = read_block(self._base, tensor, start, count).astype(np.float64)
            for row, (_, other) in zip(rows[len(self._ordered) :], sorted(self._others.items()), strict=True):
                row[:] = w - read_block(other, tensor, start, count)
        return rows


def normal(secret: bytes, tensor: TensorRange, start: int, count: int) -> NDArray[np.float64] | None:
    """Standard normal values of one block of a parameter, always the same for the same seed; None for buffers."""
    if tensor.spec.role != "parameter":
        return None
    seed = hashlib.sha256(secret + f"/{tensor.spec.name}/{start}".encode()).digest()
    return np.random.default_rng(int.from_bytes(seed)).standard_normal(count)


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
