"""One rule aggregates everything: w <- w + eta_s * sum_i (n_i / n) * u_i.

FedAvg, PUF-Regular and PUF-Special differ in who takes part and in the scales that are already inside the u_i, not here.
Sums are float64, in the order of client names, block by block over all updates at once: the same bits whatever the order
of arrival, and memory that does not grow with clients or parameters.

Buffers are never scaled: floating ones become the mean over retained clients, integers their maximum; where no retained
client takes part they stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import PufError
from puf_common.manifest import MODEL, UPDATE, Manifest, Slot
from puf_common.scaling import scale_block

__all__ = ["ArraySource", "Contribution", "NotFinite", "Source", "fold"]

_BLOCK = 1 << 16


class NotFinite(PufError):
    """A sum that is not a number in some place must never become a model."""


class Source(Protocol):
    """Bytes of a model or an update, wherever they lie."""

    def read_into(self, offset: int, out: memoryview) -> None: ...


class ArraySource:
    """A payload in memory."""

    def __init__(self, payload: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(payload)

    def read_into(self, offset: int, out: memoryview) -> None:
        out[:] = self._view[offset : offset + len(out)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One update and its weight. `scale` is what this side still has to multiply with: 1 unless the flip is the server's."""

    client: str
    part: str
    samples: int
    source: Source
    scale: float = 1.0
    negated: bool = False


def fold(
    manifest: Manifest,
    base: Source,
    contributions: Sequence[Contribution],
    write: Callable[[memoryview], object],
    *,
    denominator: int | None = None,
    server_lr: float = 1.0,
) -> None:
    """Writes the new model, in manifest order. `denominator` is the frozen n of an unlearning round; None: what came in."""
    ordered = sorted(contributions, key=lambda c: (c.client.encode(), c.part))
    n = sum(c.samples for c in ordered) if denominator is None else denominator
    retained = [c for c in ordered if not c.negated]
    for here, there in zip(manifest.slots(MODEL), manifest.slots(UPDATE), strict=True):
        for start in range(0, here.spec.size, _BLOCK):
            count = min(_BLOCK, here.spec.size - start)
            w = _read(base, here, start, count)
            with np.errstate(over="ignore", invalid="ignore"):  # looked at below
                if here.spec.role == "parameter":
                    w = _step(w, there, start, ordered, n, server_lr)
                elif retained:
                    w = _merge(w, there, start, retained)
            if here.spec.floating and not np.isfinite(w).all():
                client = _culprit(there, start, np.flatnonzero(~np.isfinite(w)), ordered)
                raise NotFinite(
                    f"tensor {here.spec.name} would no longer be finite{f' with the update of {client}' * bool(client)}",
                    tensor=here.spec.name,
                    client=client,
                )
            write(w.data.cast("B"))


def _step(
    w: NDArray[Any], slot: Slot, start: int, updates: Sequence[Contribution], n: int, server_lr: float
) -> NDArray[Any]:
    total = np.zeros(w.size, np.float64)
    for c in updates:
        u = scale_block(_read(c.source, slot, start, w.size), c.scale)
        total += np.multiply(u, c.samples / n, dtype=np.float64)
    return (w.astype(np.float64) + server_lr * total).astype(w.dtype)


def _merge(w: NDArray[Any], slot: Slot, start: int, retained: Sequence[Contribution]) -> NDArray[Any]:
    values = [_read(c.source, slot, start, w.size) for c in retained]
    if not slot.spec.floating:
        largest: NDArray[Any] = np.maximum.reduce(values)
        return largest.astype(w.dtype)
    n = sum(c.samples for c in retained)
    mean = np.zeros(w.size, np.float64)
    for c, value in zip(retained, values, strict=True):
        mean += np.multiply(value, c.samples / n, dtype=np.float64)
    return mean.astype(w.dtype)


def _culprit(slot: Slot, start: int, where: NDArray[np.intp], updates: Sequence[Contribution]) -> str:
    """Whose update weighs most in the places that are not finite."""

    def weight(c: Contribution) -> float:
        u = _read(c.source, slot, start, int(where[-1]) + 1)[where]
        with np.errstate(over="ignore"):
            return float(np.abs(scale_block(u, c.scale).astype(np.float64)).max()) * c.samples

    return max(updates, key=weight).client if updates else ""


def _read(source: Source, slot: Slot, start: int, count: int) -> NDArray[Any]:
    block = np.empty(count, slot.dtype)
    source.read_into(slot.offset + start * slot.dtype.itemsize, block.data.cast("B"))
    return block
