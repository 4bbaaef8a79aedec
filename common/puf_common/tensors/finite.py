"""Whether all numbers of an array are finite, at the speed of memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["all_finite"]


def all_finite(values: NDArray[Any]) -> bool:
    """One product with itself tells of nearly every array: a sum of squares is finite only where all of them are."""
    flat = values.reshape(-1)
    with np.errstate(all="ignore"):
        # What is finite, but too large for a sum in its own type, is looked at one by one.
        return math.isfinite(float(np.dot(flat, flat))) or bool(np.isfinite(flat).all())
