"""bfloat16 numbers, which numpy does not have: the upper 16 bits of a float32, stored as unsigned integers.

To float32 every number is exact. From float64 or float32 a value is rounded once: to the nearest bfloat16, ties to the
number whose last bit is 0. Values of at least 2^128 - 2^119 become infinite, NaN stays NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_NAN = 0x7FC0


def widen(bits: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers as float32."""
    return (bits.astype("<u4") << 16).view("<f4")


def narrow(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The nearest bfloat16 of float64 or narrower values, as bits."""
    bits = _rounded_to_odd(values).view("<u4")
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    rounded[np.isnan(values)] = _NAN
    return rounded


def _rounded_to_odd(values: NDArray[Any]) -> NDArray[np.float32]:
    """Float32 values whose last bit is 1 wherever float32 is not exact.

    Such a value never lies on a tie between two bfloat16 numbers, so that the second rounding gives the result of one.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.array(values, "<f4", order="C")
    if values.dtype.itemsize <= 4:
        return near
    exact = values.astype(np.float64, copy=False)
    inexact = (near != exact) & ~np.isnan(exact)
    bits = near.view("<u4")
    # Towards zero: a float32 that is too large has bits that are one too large.
    bits[inexact & (np.abs(near) > np.abs(exact))] -= 1
    bits[inexact] |= 1
    return near
