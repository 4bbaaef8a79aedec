"""Models as named arrays: negation, weighted means, buffers and digests. Computed in float64 and rounded once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import InvalidUpdate

Array = NDArray[Any]
Arrays = Mapping[str, Array]

# Buffers of torch's normalisation layers. An integer array is a buffer under any name.
BUFFER_NAMES = ("running_mean", "running_var", "num_batches_tracked")


def buffers_of(arrays: Arrays, named: Iterable[str] | None = None) -> frozenset[str]:
    """Names of the arrays that are never scaled: those that are named, or else integers and torch's known buffers."""
    if named is not None:
        chosen = frozenset(named)
        unknown = sorted(chosen - arrays.keys())
        if unknown:
            raise InvalidUpdate(f"{unknown[0]} is named as a buffer, but the model has no array of that name")
        return chosen
    return frozenset(
        name
        for name, array in arrays.items()
        if not np.issubdtype(array.dtype, np.floating) or name.rpartition(".")[2] in BUFFER_NAMES
    )


def require_same(base: Arrays, other: Arrays) -> None:
    """Raises InvalidUpdate if names or shapes differ."""
    if base.keys() != other.keys():
        odd = sorted(base.keys() ^ other.keys())[0]
        raise InvalidUpdate(f"array {odd} is in one of the models only: an update must have the arrays of the model")
    for name, array in base.items():
        if array.shape != other[name].shape:
            raise InvalidUpdate(f"array {name} has shape {other[name].shape}, the model's has {array.shape}")


def scaled(base: Arrays, trained: Arrays, scale: float, buffers: frozenset[str]) -> dict[str, Array]:
    """`w + scale * (w_local - w)` for parameters; buffers are those of `base`. A negative scale negates the update."""
    require_same(base, trained)
    return {name: w if name in buffers else _along(w, trained[name], scale) for name, w in base.items()}


def stretched(base: Arrays, sent: Arrays, factor: float, buffers: frozenset[str]) -> dict[str, Array]:
    """`w + factor * (x - w)` for parameters; buffers are those of `sent`. Changes the weight of an update in a mean."""
    require_same(base, sent)
    return {n: x if n in buffers or factor == 1.0 else _along(base[n], x, factor) for n, x in sent.items()}


def with_buffers(
    arrays: Arrays, base: Arrays, others: Sequence[tuple[float, Arrays]], buffers: frozenset[str]
) -> dict[str, Array]:
    """`arrays` with the mean buffers of the others, so that it does not move their mean; without others, with the base's."""
    total = sum(weight for weight, _ in others)
    changed = dict(arrays)
    for name in buffers:
        if not others:
            changed[name] = base[name]
            continue
        mean = sum(weight / total * other[name].astype(np.float64) for weight, other in others)
        changed[name] = np.asarray(mean).astype(_mean_type(others[0][1][name]))
    return changed


def weighted_mean(models: Sequence[tuple[float, Arrays]]) -> dict[str, Array]:
    """The mean of models by weight, in float64."""
    total = sum(weight for weight, _ in models)
    return {
        name: np.asarray(sum(weight / total * arrays[name].astype(np.float64) for weight, arrays in models))
        for name in models[0][1]
    }


def finite(arrays: Arrays) -> bool:
    return all(bool(np.isfinite(a).all()) for a in arrays.values() if np.issubdtype(a.dtype, np.floating))


def digest(arrays: Arrays) -> str:
    """SHA-256 over the bytes of all arrays in their order, as in the files of PUF's own models."""
    found = hashlib.sha256()
    for array in arrays.values():
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def nbytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


def _along(base: Array, other: Array, factor: float) -> Array:
    start = base.astype(np.float64)
    return np.asarray((start + factor * (other.astype(np.float64) - start)).astype(other.dtype))


def _mean_type(array: Array) -> np.dtype[Any]:
    """A mean of integers is no integer."""
    return array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float64)
