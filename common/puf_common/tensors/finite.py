"""A fast check that all numbers of an array are finite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def all_finite(values: NDArray[Any]) -> bool:
    """Whether all values are finite. The sum of squares decides for nearly every array: it is finite only if all values are."""
    flat = values.reshape(-1)
    with np.errstate(all="ignore"):
        # Finite values can overflow the sum; then each value is checked.
        return math.isfinite(float(np.dot(flat, flat))) or bool(np.isfinite(flat).all())
