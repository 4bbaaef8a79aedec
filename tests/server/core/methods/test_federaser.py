"""FedEraser keeps the stored length and the calibrated direction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from puf_server.core.methods.federaser import FederaserOptions, calibrated, factor, retained_rounds, shares

ZERO = np.zeros(2, "f4")


def vector(x: float, y: float) -> NDArray[np.float32]:
    return np.array([x, y], "f4")


def norm(v: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(v.astype("f8")))


def step(stored: NDArray[np.float32], found: NDArray[np.float32], share: float = 1.0) -> NDArray[np.float64]:
    return calibrated(ZERO, [(found, factor(norm(stored), norm(found)), share)])


def test_the_worked_steps_and_their_mean() -> None:
    assert step(vector(3, 4), vector(0, 0.5)) == pytest.approx([0, 5])
    assert step(vector(0, 1), vector(2, 0)) == pytest.approx([1, 0])
    p = shares({"a": 1, "b": 3})
    both = [(vector(0, 0.5), factor(5, 0.5), p["a"]), (vector(2, 0), factor(1, 2), p["b"])]
    assert calibrated(ZERO, both) == pytest.approx([0.75, 1.25])
    assert calibrated(vector(1, 1), both) == pytest.approx([1.75, 2.25])


_VALUES = st.floats(-100, 100, width=32).filter(lambda v: abs(v) > 1e-3)


@given(stored=st.tuples(_VALUES, _VALUES), found=st.tuples(_VALUES, _VALUES), scale=st.sampled_from([0.25, 2.0, 64.0]))
def test_length_is_the_stored_one_and_direction_the_found_one(
    stored: tuple[float, float], found: tuple[float, float], scale: float
) -> None:
    u, v = vector(*stored), vector(*found)
    s = step(u, v)
    assert float(np.linalg.norm(s)) == pytest.approx(norm(u))
    assert float(s @ v) / float(np.linalg.norm(s)) / norm(v) == pytest.approx(1)
    assert step(u, v * np.float32(scale)) == pytest.approx(s)
    assert step(u, u) == pytest.approx(u.astype("f8"))


def test_a_direction_without_length_gives_no_step() -> None:
    assert step(vector(3, 4), ZERO) == pytest.approx([0, 0])


@given(samples=st.dictionaries(st.text(max_size=3), st.integers(1, 10_000), min_size=1))
def test_shares_are_of_those_who_are_there(samples: dict[str, int]) -> None:
    assume(samples)
    assert sum(shares(samples).values()) == pytest.approx(1)


def test_every_so_many_rounds_one_is_retained() -> None:
    assert retained_rounds(4, 1) == (1, 2, 3, 4)
    assert retained_rounds(5, 2) == (1, 3)
    assert retained_rounds(1, 2) == ()
    assert (FederaserOptions().interval, FederaserOptions().calibration_epochs) == (1, 0.5)
    assert FederaserOptions().norms == "model"
