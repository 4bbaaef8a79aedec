"""Compact updates: float32 parameters as 16-bit or 8-bit numbers, all other tensors unchanged.

`quantised` describes the 8-bit numbers. An update of 16-bit numbers begins with the factors, one float32 for each compacted
tensor. The tensors follow in manifest order. Before rounding, a tensor is divided by its factor, a power of two that
brings its largest value to at most 2^15. Small updates therefore stay above the smallest 16-bit number, and the division
loses no accuracy. The rounding error of a value is at most 2^-11 of it in float16 (more for values below 2^-29 of the
tensor's largest) and 2^-8 in bfloat16.

Length and digest in an update's header are those of the expanded update. Both sides expand it with this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import InvalidUpdate
from puf_common.tensors import bfloat16
from puf_common.tensors.chunks import Payload
from puf_common.tensors.manifest import UPDATE, Manifest, TensorRange, Use
from puf_common.tensors.quantised import RECORD, Quantiser, decode, quantised_nbytes

# The names in settings and contract. "full" is the update unchanged.
ENCODINGS = ("full", "f16", "bf16", "i8")
_LARGEST = 2.0**15
# With a larger factor, an expanded value could exceed the range of float32.
_LARGEST_FACTOR = 2.0**111
_BLOCK = 1 << 16


def compacted(tensor: TensorRange) -> bool:
    """Whether an encoding shortens this tensor."""
    return tensor.spec.role == "parameter" and tensor.dtype.str == "<f4"


def compact_nbytes(manifest: Manifest, encoding: str) -> int:
    """The length of an update in this encoding."""
    if encoding == "full":
        return manifest.nbytes(UPDATE)
    tensors = manifest.ranges(UPDATE)
    factors = 0 if encoding == "i8" else 4 * sum(map(compacted, tensors))
    return factors + sum(_wire_nbytes(tensor, encoding) for tensor in tensors)


def _wire_nbytes(tensor: TensorRange, encoding: str) -> int:
    if not compacted(tensor):
        return tensor.nbytes
    return quantised_nbytes(tensor.spec.size) if encoding == "i8" else tensor.nbytes // 2


def compact(manifest: Manifest, payload: Payload, encoding: str, seed: int = 0) -> bytes:
    """The compact update. A scale must be applied before, so that both sides use the same rounded values.

    8-bit numbers are rounded at random, by the seed.
    """
    factors: list[np.float32] = []
    parts: list[Payload] = []
    quantiser = Quantiser(seed)
    for tensor in manifest.ranges(UPDATE):
        raw = memoryview(payload)[tensor.offset : tensor.offset + tensor.nbytes]
        if not compacted(tensor):
            parts.append(raw)
            continue
        values = np.frombuffer(raw, "<f4")
        if encoding == "i8":
            parts.append(quantiser.encode(values))
            continue
        factor = np.float32(_factor(float(np.abs(values).max(initial=0.0))))
        factors.append(factor)
        parts.append(_narrow(values / factor, encoding).tobytes())
    return b"".join((np.array(factors, "<f4").tobytes(), *parts))


def expand(manifest: Manifest, wire: Payload, encoding: str) -> bytearray:
    """The update that the receiver gets from a compact one."""
    # One allocation: memory that grows is copied again and again.
    whole, at = bytearray(manifest.nbytes(UPDATE)), 0
    for block in expanded(manifest, wire, encoding):
        whole[at : at + len(block)] = block
        at += len(block)
    del whole[at:]
    return whole


def expanded(manifest: Manifest, wire: Payload, encoding: str) -> Iterator[bytes]:
    """The bytes of `expand` in blocks, without memory for the whole update."""
    expander, view = Expander(manifest, encoding), memoryview(wire)
    for begin in range(0, len(view), _BLOCK):
        yield expander.feed(view[begin : begin + _BLOCK])


class Expander:
    """Expands a compact update from blocks of any size, or a model's step, which has the layout of a model."""

    def __init__(self, manifest: Manifest, encoding: str, layout: Use = UPDATE) -> None:
        self._encoding = encoding
        self._tensors = [tensor for tensor in manifest.ranges(layout) if tensor.nbytes]
        self._with_factor = [t for t in manifest.ranges(layout) if compacted(t) and encoding != "i8"]
        # Compacted tensors are expanded in whole units: a number, or a block of them.
        self._unit = RECORD.itemsize if encoding == "i8" else 2
        self._factors: dict[str, np.float32] | None = None
        self._rest = b""
        self._index = 0
        self._left = self._on_wire()

    def feed(self, data: Payload) -> bytes:
        """The bytes of the update that are known after this block."""
        rest = self._rest + bytes(data)
        if self._factors is None:
            size = 4 * len(self._with_factor)
            if len(rest) < size:
                self._rest = rest
                return b""
            self._factors, rest = self._checked(rest[:size]), rest[size:]
        out = []
        while rest and self._index < len(self._tensors):
            tensor, short = self._tensors[self._index], compacted(self._tensors[self._index])
            take = min(self._left, len(rest))
            if short and take < self._left:
                take -= take % self._unit
            if not take:
                break
            block, rest = rest[:take], rest[take:]
            out.append(self._widen(block, tensor) if short else block)
            self._left -= take
            if not self._left:
                self._index += 1
                self._left = self._on_wire()
        if self._index == len(self._tensors) and rest:
            raise InvalidUpdate("the update is longer than its manifest states")
        self._rest = rest
        return b"".join(out)

    def _on_wire(self) -> int:
        if self._index >= len(self._tensors):
            return 0
        return _wire_nbytes(self._tensors[self._index], self._encoding)

    def _checked(self, raw: bytes) -> dict[str, np.float32]:
        factors = np.frombuffer(raw, "<f4")
        for tensor, factor in zip(self._with_factor, factors, strict=True):
            if not 0 < factor <= _LARGEST_FACTOR:
                raise InvalidUpdate(f"tensor {tensor.spec.name} has an invalid factor", tensor=tensor.spec.name)
        return {tensor.spec.name: factor for tensor, factor in zip(self._with_factor, factors, strict=True)}

    def _widen(self, block: bytes, tensor: TensorRange) -> bytes:
        assert self._factors is not None
        if self._encoding == "i8":
            return decode(block).tobytes()
        if self._encoding == "f16":
            values = np.frombuffer(block, "<f2").astype("<f4")
        else:
            values = bfloat16.widen(np.frombuffer(block, "<u2"))
        with np.errstate(invalid="ignore"):
            if not (np.abs(values) <= 2 * _LARGEST).all():
                raise InvalidUpdate(
                    f"tensor {tensor.spec.name} has values that are not finite or out of range", tensor=tensor.spec.name
                )
        return (values * self._factors[tensor.spec.name]).astype("<f4").tobytes()


def _factor(largest: float) -> float:
    """A power of two: division and multiplication by it are exact."""
    if not 0 < largest < np.inf:
        return 1.0
    return float(2.0 ** np.clip(np.ceil(np.log2(largest / _LARGEST)), -126, 111))


def _narrow(values: NDArray[Any], encoding: str) -> NDArray[Any]:
    if encoding == "f16":
        return values.astype("<f2")
    return bfloat16.narrow(values)
