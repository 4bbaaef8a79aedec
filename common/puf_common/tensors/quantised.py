"""Float32 values as 8-bit numbers with one scale per block, rounded at random so that the mean error is zero.

A block has 256 values, the last one of a tensor fewer. It is sent as a float32 scale and one signed byte per value; the
value is byte * scale. The scale is the largest value divided by nearly 127, so a value is off by less than one scale. The
random numbers depend on the seed only: numpy guarantees the raw stream of its bit generators.

One table of random numbers serves a whole update: blocks that are rounded together read it from a random place. Each value
still meets every random number with the same probability. New numbers for every value would cost more than all other steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import InvalidUpdate
from puf_common.tensors.chunks import Payload

BLOCK = 256
RECORD = np.dtype([("scale", "<f4"), ("values", "i1", (BLOCK,))])
# Slightly less than 127: with every random number a value becomes a byte from -127 to 127, without a comparison.
_STEPS = np.float32(126.999)
# With a larger scale, a decoded value could exceed the range of float32.
_LARGEST_SCALE = np.float32(2.0**120)
# Blocks with smaller scales are sent as zeros. Their inverse would exceed the range of float32.
_SMALLEST_SCALE = np.float32(2.0**-120)
# The largest value that a receiver accepts.
LARGEST_VALUE = 2.0**126
# Blocks that are rounded at a time: few enough to stay in the processor's cache.
_AT_ONCE = 256
# Added to bytes, so that they are positive: a cast to an unsigned type then rounds down.
_OFFSET = 128


def quantised_nbytes(values: int) -> int:
    """The length of so many values."""
    return values + 4 * -(-values // BLOCK)


def nearest(values: NDArray[np.float32]) -> memoryview:
    """The values as blocks, each rounded to the nearest number."""
    return _encoded(values, lambda _: np.float32(_OFFSET + 0.5))


class Quantiser:
    """Rounds the tensors of one update, in order. The same seed and the same values give the same bytes."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.PCG64(seed)
        self._table: NDArray[np.float32] | None = None

    def encode(self, values: NDArray[np.float32]) -> memoryview:
        return _encoded(values, self._chances)

    def _chances(self, blocks: int) -> NDArray[np.float32]:
        """A number from 0 to below 1 for each value, increased by the offset."""
        most = _AT_ONCE * BLOCK
        if self._table is None:
            # Sixteen random bits for each number.
            raw = self._random.random_raw(most // 2).astype("<u8", copy=False).view("<u2")
            self._table = (raw * 2.0**-16 + _OFFSET).astype(np.float32)
        place = int(self._random.random_raw()) % most
        return self._table[place : place + blocks * BLOCK].reshape(blocks, BLOCK)


def _encoded(values: NDArray[np.float32], chances: Callable[[int], NDArray[np.float32] | np.float32]) -> memoryview:
    full, rest = divmod(len(values), BLOCK)
    records = np.empty(full + bool(rest), RECORD)
    whole = values[: full * BLOCK].reshape(full, BLOCK)
    space = np.empty((_AT_ONCE, BLOCK), np.float32)
    for begin in range(0, full, _AT_ONCE):
        part = whole[begin : begin + _AT_ONCE]
        _round(part, chances(len(part)), records[begin : begin + len(part)], space[: len(part)])
    if rest:
        last = np.zeros((1, BLOCK), np.float32)
        last[0, :rest] = values[full * BLOCK :]
        _round(last, chances(1), records[full:], space[:1])
    return records.view(np.uint8).data[: quantised_nbytes(len(values))]


def _round(
    values: NDArray[np.float32],
    chances: NDArray[np.float32] | np.float32,
    out: NDArray[Any],
    space: NDArray[np.float32],
) -> None:
    # Without its sign bit a float is the larger, the larger its bits are as an integer.
    bits = np.bitwise_and(values.view(np.uint32), np.uint32(0x7FFFFFFF), out=space.view(np.uint32))
    scales = bits.max(axis=1).view(np.float32) / _STEPS
    scales[scales < _SMALLEST_SCALE] = 0.0
    inverse = np.divide(np.float32(1.0), scales, out=np.zeros_like(scales), where=scales > 0)
    np.multiply(values, inverse[:, None], out=space)
    np.add(space, chances, out=space)
    out["scale"] = scales
    np.bitwise_xor(space.astype(np.uint8), np.uint8(_OFFSET), out=out["values"].view(np.uint8))


def decode(data: Payload) -> NDArray[np.float32]:
    """The values of whole blocks; the last one may be short. Raises InvalidUpdate if a scale is out of range."""
    full = len(data) // RECORD.itemsize
    view = memoryview(data)
    records = np.frombuffer(view[: full * RECORD.itemsize], RECORD)
    rest = view[full * RECORD.itemsize :]
    values = np.empty(full * BLOCK + max(0, len(rest) - 4), "<f4")
    scales, whole = _checked(records["scale"]), values[: full * BLOCK].reshape(full, BLOCK)
    for begin in range(0, full, _AT_ONCE):
        part = slice(begin, begin + _AT_ONCE)
        np.copyto(whole[part], records["values"][part])
        np.multiply(whole[part], scales[part, None], out=whole[part])
    if rest:
        scale = _checked(np.frombuffer(rest[:4], "<f4"))
        np.multiply(np.frombuffer(rest[4:], "i1"), scale, out=values[full * BLOCK :])
    return values


def _checked(scales: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(invalid="ignore"):
        if not ((scales >= 0) & (scales <= _LARGEST_SCALE)).all():
            raise InvalidUpdate("a block of the update has a scale that is not a number from 0 to 2^120")
    return scales
