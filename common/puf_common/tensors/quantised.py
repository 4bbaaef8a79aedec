"""Float32 values as 8-bit numbers with one scale per block, rounded at random so that the mean error is zero.

A block has 256 values, the last one of a tensor fewer. It is sent as a float32 scale and one signed byte per value; the
value is byte * scale. The scale is the largest value divided by 127, so a value is off by less than one scale. The random
numbers depend on the seed only: numpy guarantees the raw stream of its bit generators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import InvalidUpdate
from puf_common.tensors.chunks import Payload

BLOCK = 256
RECORD = np.dtype([("scale", "<f4"), ("values", "i1", (BLOCK,))])
_STEPS = 127
# With a larger scale, a decoded value could exceed the range of float32.
_LARGEST_SCALE = np.float32(2.0**120)
# Blocks with smaller scales are sent as zeros. Their inverse would exceed the range of float32.
_SMALLEST_SCALE = np.float32(2.0**-120)
# Blocks that are rounded at a time: few enough to stay in the processor's cache.
_AT_ONCE = 256


def quantised_nbytes(values: int) -> int:
    """The length of so many values."""
    return values + 4 * -(-values // BLOCK)


class Quantiser:
    """Rounds the tensors of one update, in order. The same seed and the same values give the same bytes."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.PCG64(seed)

    def encode(self, values: NDArray[np.float32]) -> bytes:
        full = len(values) // BLOCK
        records = np.empty(full, RECORD)
        whole = values[: full * BLOCK].reshape(full, BLOCK)
        for begin in range(0, full, _AT_ONCE):
            self._round(whole[begin : begin + _AT_ONCE], records[begin : begin + _AT_ONCE])
        if len(values) == full * BLOCK:
            return records.tobytes()
        last, rest = np.empty(1, RECORD), values[full * BLOCK :]
        padded = np.zeros((1, BLOCK), np.float32)
        padded[0, : len(rest)] = rest
        self._round(padded, last)
        return records.tobytes() + last.tobytes()[: 4 + len(rest)]

    def _round(self, values: NDArray[np.float32], out: NDArray[Any]) -> None:
        scales = np.abs(values).max(axis=1) / np.float32(_STEPS)
        scales[scales < _SMALLEST_SCALE] = 0.0
        inverse = np.divide(np.float32(1.0), scales, out=np.zeros_like(scales), where=scales > 0)
        steps = values * inverse[:, None]
        # Sixteen random bits for each value, as numbers from 0 to below 1.
        raw = self._random.random_raw(values.size // 4).astype("<u8", copy=False).view("<u2").reshape(values.shape)
        chance = np.multiply(raw, np.float32(2.0**-16), dtype=np.float32)
        np.add(steps, chance, out=steps)
        np.floor(steps, out=steps)
        np.clip(steps, -_STEPS, _STEPS, out=steps)
        out["scale"] = scales
        out["values"] = steps


def decode(data: Payload) -> NDArray[np.float32]:
    """The values of whole blocks; the last one may be short. Raises InvalidUpdate if a scale is out of range."""
    full = len(data) // RECORD.itemsize
    view = memoryview(data)
    records = np.frombuffer(view[: full * RECORD.itemsize], RECORD)
    rest = view[full * RECORD.itemsize :]
    values = np.empty(full * BLOCK + max(0, len(rest) - 4), "<f4")
    np.multiply(records["values"], _checked(records["scale"])[:, None], out=values[: full * BLOCK].reshape(full, BLOCK))
    if rest:
        scale = _checked(np.frombuffer(rest[:4], "<f4"))
        np.multiply(np.frombuffer(rest[4:], "i1"), scale, out=values[full * BLOCK :])
    return values


def _checked(scales: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(invalid="ignore"):
        if not ((scales >= 0) & (scales <= _LARGEST_SCALE)).all():
            raise InvalidUpdate("a block of the update has a scale that is not a number from 0 to 2^120")
    return scales
