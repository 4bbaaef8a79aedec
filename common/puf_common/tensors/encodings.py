"""Updates in half the bytes: float32 parameters travel as 16-bit numbers, everything else as it is.

On the wire come first the factors, one float32 for each tensor that is made smaller, then the tensors in manifest order.
A tensor is divided by its factor, a power of two that brings its largest value to at most 2^15, before it is rounded: so
small updates do not fall below what 16 bits can tell from zero, and dividing costs no accuracy. The rounding does: each value
is off by at most 2^-11 of itself in float16 (values below 2^-29 of the tensor's largest: more), 2^-8 in bfloat16.

Length and digest in an update's header are those of what the receiver expands, which both sides compute by this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import InvalidUpdate
from puf_common.tensors.chunks import Payload
from puf_common.tensors.manifest import UPDATE, Manifest, TensorRange

__all__ = ["ENCODINGS", "Expander", "compact", "compact_nbytes", "expand"]

# As the setting and the contract name them; "full" is float32 as it is.
ENCODINGS = ("full", "f16", "bf16")
_LARGEST = 2.0**15
# Beyond it, expanding could leave float32's range.
_LARGEST_FACTOR = 2.0**111
_BLOCK = 1 << 16


def _small(slot: TensorRange) -> bool:
    return slot.spec.role == "parameter" and slot.dtype.str == "<f4"


def compact_nbytes(manifest: Manifest, encoding: str) -> int:
    """Bytes on the wire."""
    if encoding == "full":
        return manifest.nbytes(UPDATE)
    return sum(4 + slot.nbytes // 2 if _small(slot) else slot.nbytes for slot in manifest.ranges(UPDATE))


def compact(manifest: Manifest, payload: Payload, encoding: str) -> bytes:
    """The update as it travels. Its scale, where it has one, is applied before: what is rounded is what counts."""
    factors, parts = [], []
    for slot in manifest.ranges(UPDATE):
        raw = memoryview(payload)[slot.offset : slot.offset + slot.nbytes]
        if not _small(slot):
            parts.append(bytes(raw))
            continue
        values = np.frombuffer(raw, "<f4")
        factor = np.float32(_factor(float(np.abs(values).max(initial=0.0))))
        factors.append(factor)
        parts.append(_narrow(values / factor, encoding).tobytes())
    return b"".join((np.array(factors, "<f4").tobytes(), *parts))


def expand(manifest: Manifest, wire: Payload, encoding: str) -> bytearray:
    """What the receiver makes of it."""
    expander, whole = Expander(manifest, encoding), bytearray()
    view = memoryview(wire)
    for begin in range(0, len(view), _BLOCK):
        whole += expander.feed(view[begin : begin + _BLOCK])
    return whole


class Expander:
    """Takes the bytes from the wire in pieces of any size and gives those of the update, as far as they are known."""

    def __init__(self, manifest: Manifest, encoding: str) -> None:
        self._encoding = encoding
        self._slots = [slot for slot in manifest.ranges(UPDATE) if slot.nbytes]
        self._named = [slot for slot in manifest.ranges(UPDATE) if _small(slot)]
        self._factors: dict[str, np.float32] | None = None
        self._rest = b""
        self._index = 0
        self._left = self._on_wire()

    def feed(self, data: Payload) -> bytes:
        rest = self._rest + bytes(data)
        if self._factors is None:
            size = 4 * len(self._named)
            if len(rest) < size:
                self._rest = rest
                return b""
            self._factors, rest = self._checked(rest[:size]), rest[size:]
        out = []
        while rest and self._index < len(self._slots):
            slot, small = self._slots[self._index], _small(self._slots[self._index])
            take = min(self._left, len(rest) - len(rest) % 2 if small else len(rest))
            if not take:
                break
            piece, rest = rest[:take], rest[take:]
            out.append(self._widen(piece, slot) if small else piece)
            self._left -= take
            if not self._left:
                self._index += 1
                self._left = self._on_wire()
        if self._index == len(self._slots) and rest:
            raise InvalidUpdate("the update is longer than its manifest")
        self._rest = rest
        return b"".join(out)

    def _on_wire(self) -> int:
        if self._index >= len(self._slots):
            return 0
        slot = self._slots[self._index]
        return slot.nbytes // 2 if _small(slot) else slot.nbytes

    def _checked(self, raw: bytes) -> dict[str, np.float32]:
        factors = np.frombuffer(raw, "<f4")
        for slot, factor in zip(self._named, factors, strict=True):
            if not 0 < factor <= _LARGEST_FACTOR:
                raise InvalidUpdate(f"tensor {slot.spec.name} has a factor that cannot be", tensor=slot.spec.name)
        return {slot.spec.name: factor for slot, factor in zip(self._named, factors, strict=True)}

    def _widen(self, piece: bytes, slot: TensorRange) -> bytes:
        assert self._factors is not None
        if self._encoding == "f16":
            values = np.frombuffer(piece, "<f2").astype("<f4")
        else:
            values = (np.frombuffer(piece, "<u2").astype("<u4") << 16).view("<f4")
        with np.errstate(invalid="ignore"):
            if not (np.abs(values) <= 2 * _LARGEST).all():
                raise InvalidUpdate(
                    f"tensor {slot.spec.name} has values that are not finite or out of range", tensor=slot.spec.name
                )
        return (values * self._factors[slot.spec.name]).astype("<f4").tobytes()


def _factor(largest: float) -> float:
    """A power of two, so that dividing and multiplying by it round nothing."""
    if not 0 < largest < np.inf:
        return 1.0
    return float(2.0 ** np.clip(np.ceil(np.log2(largest / _LARGEST)), -126, 111))


def _narrow(values: NDArray[Any], encoding: str) -> NDArray[Any]:
    if encoding == "f16":
        return values.astype("<f2")
    # To the nearest, ties to even; numpy has no bfloat16.
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    rounded: NDArray[Any] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2")
