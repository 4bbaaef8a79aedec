"""Inner products between the vectors of a step, and models that are linear in these vectors.

A vector is an update, or the difference of the base model to another model. Products are over parameters, without
buffers. A method whose step has the rule LINEAR gets them and answers with one factor for each vector:

    w <- w + sum over vectors of factor * vector

The server computes the products while it streams the updates once more, and stores the factors in the audit log. It does
not store the products: they describe the update of a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_server.core.methods.blocks import TensorBlock, UpdateBlock, mean_of_buffers


def vector_of(update: UpdateBlock) -> str:
    """The name of an update among the vectors."""
    return f"{update.client}/{update.part}"


@dataclass(frozen=True, slots=True)
class Products:
    """The inner product of every two vectors, by name: first the updates, then the other models."""

    names: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]

    def of(self, one: str, other: str) -> float:
        return self.rows[self.names.index(one)][self.names.index(other)]

    def matrix(self, rows: Iterable[str], columns: Sequence[str]) -> NDArray[np.float64]:
        return np.array([[self.of(row, column) for column in columns] for row in rows], np.float64)


def combined(block: TensorBlock, factors: Mapping[str, float]) -> NDArray[Any]:
    """A block of the model w + sum factor * vector. Buffers become the mean over retained clients."""
    if block.tensor.role != "parameter":
        retained = [update for update in block.updates if not update.target]
        return mean_of_buffers(
            TensorBlock(tensor=block.tensor, parameter=-1, w=block.w, others=block.others, updates=retained)
        )
    base = block.w.astype(np.float64)
    total = np.zeros(base.size, np.float64)
    for update in block.updates:
        factor = factors.get(vector_of(update), 0.0)
        if update.u is not None and factor:
            total += np.multiply(update.u, factor, dtype=np.float64)
    for name, other in sorted(block.others.items()):
        if factors.get(name):
            total += factors[name] * (base - other.astype(np.float64))
    return base + total
