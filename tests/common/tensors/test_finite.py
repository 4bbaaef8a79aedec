"""Values that are not finite are found: every type, every position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.tensors.finite import all_finite


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@given(size=st.integers(1, 5000), where=st.floats(0, 1, exclude_max=True))
def test_one_bad_value_anywhere_is_found(dtype: str, bad: float, size: int, where: float) -> None:
    values = np.ones(size, dtype)
    assert all_finite(values)
    values[int(where * size)] = bad
    assert not all_finite(values)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_values_too_large_for_a_sum_of_squares_are_finite(dtype: str) -> None:
    assert all_finite(np.full((30, 40), np.finfo(dtype).max, dtype))


def test_an_empty_array_is_finite() -> None:
    assert all_finite(np.empty((0, 3), np.float32))
