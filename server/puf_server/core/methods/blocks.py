"""Blocks of tensors, as the rules of methods see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_common.tensors.manifest import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBlock:
    """The values of one update in one block; `u` is None where the update leaves the tensor out."""

    client: str
    samples: int
    u: NDArray[Any] | None
    part: str = "main"
    # Whether a target sent it for the data to forget.
    target: bool = False
    # Norms of the whole update, per parameter in manifest order. Only if the method `measures`.
    norms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBlock:
    """Neighbouring values of one tensor: in the base model, in other models by name, and in the updates."""

    tensor: TensorSpec
    # Counts the parameters of the manifest; -1 for buffers.
    parameter: int
    w: NDArray[Any]
    others: Mapping[str, NDArray[Any]]
    updates: Sequence[UpdateBlock]
    # Standard normal values from a secret stream of the server. Only if the rule is NOISE.
    noise: NDArray[np.float64] | None = None


# Gives a block of the new model in any floating type. The caller converts it once and refuses values that are not finite.
Rule = Callable[[TensorBlock], NDArray[Any]]


def weighted_mean(block: TensorBlock) -> NDArray[Any]:
    """The base model plus the mean of the updates by samples. Buffers stay as they are."""
    if block.tensor.role != "parameter":
        return block.w
    n = sum(update.samples for update in block.updates)
    total = np.zeros(block.w.size, np.float64)
    for update in block.updates:
        if update.u is not None:
            total += np.multiply(update.u, update.samples / n, dtype=np.float64)
    return block.w.astype(np.float64) + total


def installed(block: TensorBlock) -> NDArray[Any]:
    """The model that the only update leads to, with its buffers."""
    if block.tensor.role != "parameter":
        return mean_of_buffers(block)
    [update] = block.updates
    assert update.u is not None
    return block.w.astype(np.float64) + update.u.astype(np.float64)


def mean_of_buffers(block: TensorBlock) -> NDArray[Any]:
    """The mean of floating buffers, the maximum of integer ones, or the base model's if no update has any."""
    sent = [(update.u, update.samples) for update in block.updates if update.u is not None]
    if not sent:
        return block.w
    if not block.tensor.floating:
        largest: NDArray[Any] = np.maximum.reduce([values for values, _ in sent])
        return largest
    n = sum(samples for _, samples in sent)
    mean = np.zeros(block.w.size, np.float64)
    for values, samples in sent:
        mean += np.multiply(values, samples / n, dtype=np.float64)
    return mean
