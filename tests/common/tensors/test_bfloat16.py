"""bfloat16: worked numbers of its rounding, and the nearest number in every case."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from puf_common.tensors.bfloat16 import narrow, widen

WORKED = [
    (1.0, 0x3F80),
    (-2.5, 0xC020),
    # Halfway between 1 and 1 + 2^-7, and between 1 + 2^-7 and 1 + 2^-6: ties go to the even last bit.
    (1 + 2.0**-8, 0x3F80),
    (1 + 3 * 2.0**-8, 0x3F82),
    # A little above the tie. Rounding to float32 first would make it a tie, and give 0x3F80.
    (1 + 2.0**-8 + 2.0**-40, 0x3F81),
    (-(1 + 2.0**-8 + 2.0**-40), 0xBF81),
    # A little below the tie. Rounding to float32 first would make it a tie, and give 0x3F82.
    (1 + 3 * 2.0**-8 - 2.0**-40, 0x3F81),
    (0.0, 0x0000),
    (-0.0, 0x8000),
    # The smallest number, and what is at most half of it.
    (2.0**-133, 0x0001),
    (2.0**-134, 0x0000),
    (2.0**-134 * (1 + 2.0**-30), 0x0001),
    # The largest number, and the first value beyond it.
    (2.0**128 - 2.0**120, 0x7F7F),
    (2.0**128 - 2.0**119 - 2.0**80, 0x7F7F),
    (2.0**128 - 2.0**119, 0x7F80),
    (1e300, 0x7F80),
    (-float("inf"), 0xFF80),
]


@pytest.mark.parametrize(("value", "bits"), WORKED, ids=[f"{value!r}" for value, _ in WORKED])
def test_worked_numbers(value: float, bits: int) -> None:
    assert int(narrow(np.array([value]))[0]) == bits


def test_not_a_number_stays_so() -> None:
    worst = np.array([0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF], "<u4").view("<f4")
    assert np.isnan(widen(narrow(worst))).all()
    assert np.isnan(widen(narrow(np.array([float("nan")])))).all()


@given(st.floats(width=64, allow_nan=False, min_value=-3e38, max_value=3e38))
def test_no_bfloat16_is_nearer(value: float) -> None:
    bits = int(narrow(np.array([value]))[0])
    magnitude = bits & 0x7FFF
    near = Fraction(float(widen(np.array([bits], "<u2"))[0]))
    distance = abs(near - Fraction(value))
    for other in {max(magnitude - 1, 0), min(magnitude + 1, 0x7F7F)} - {magnitude}:
        neighbour = Fraction(float(widen(np.array([other | (bits & 0x8000)], "<u2"))[0]))
        away = abs(neighbour - Fraction(value))
        assert distance < away or (distance == away and bits % 2 == 0)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_float32_rounds_as_torch_does(values: list[float]) -> None:
    array = np.array(values, "<f4")
    expected = torch.from_numpy(array.copy()).bfloat16().view(torch.int16).numpy().view("<u2")
    assert narrow(array).tolist() == expected.tolist()


def test_every_number_is_exact_in_float32() -> None:
    bits = np.arange(1 << 16, dtype="<u2")
    values = widen(bits)
    finite = np.isfinite(values)
    assert narrow(values[finite]).tolist() == bits[finite].tolist()
    assert narrow(values[finite].astype(np.float64)).tolist() == bits[finite].tolist()
