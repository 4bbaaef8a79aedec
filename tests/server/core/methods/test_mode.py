"""MoDe's blending and its rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from puf_server.core.methods.mode import AUTHORS_CODE, ModeOptions, blend, phases

M, DEGRADED = np.array([1, -1], "f4"), np.array([3, 1], "f4")


def test_the_worked_blend() -> None:
    assert blend(M, DEGRADED, 0.95) == pytest.approx([1.1, -0.9])


@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4))
def test_a_whole_weight_leaves_exactly_one_model(values: list[float]) -> None:
    a, b = np.array(values[:2], "f4"), np.array(values[2:], "f4")
    assert np.array_equal(blend(a, b, 1.0).astype("f4"), a)
    assert np.array_equal(blend(a, b, 0.0).astype("f4"), b)


@given(keep=st.floats(0, 1), times=st.integers(0, 12))
def test_repeated_blends_with_one_model_are_one_blend_with_the_power(keep: float, times: int) -> None:
    blended = M.astype("f8")
    for _ in range(times):
        blended = blend(blended, DEGRADED, keep)
    assert blended == pytest.approx(blend(M, DEGRADED, keep**times), abs=1e-12)


def test_after_six_blends_the_model_still_weighs_most() -> None:
    assert ModeOptions().keep ** ModeOptions().degrade_rounds == pytest.approx(0.7351, abs=1e-4)


def test_degradation_is_in_the_first_rounds_of_guidance() -> None:
    assert phases(ModeOptions(degrade_rounds=2, rounds=3)) == ("degrade", "guide", "degrade", "guide", "guide")
    assert phases(ModeOptions()).count("degrade") == 6
    assert phases(ModeOptions()).count("guide") == 10
    with pytest.raises(ValidationError, match="degrade_rounds 6 must be at most rounds 5"):
        ModeOptions(rounds=5)


def test_rates_of_guidance_are_the_papers_or_those_of_its_authors_code() -> None:
    rates = [(o.lr_guide_target, o.lr_guide_retain) for o in (ModeOptions(), AUTHORS_CODE)]
    assert rates == [(5e-4, 5e-4), (0.1, 5e-4)]
