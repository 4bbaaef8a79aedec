from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.errors import UsageError
from puf_lab.evaluation.comparison import (
    Delta,
    Recovery,
    delta_to_retrain,
    percent,
    recovery,
    recovery_near,
    summarise_recoveries,
)

points = st.floats(0, 100)


def test_percent_is_the_mean_score() -> None:
    assert percent([1.0, 0.5]) == 75.0
    with pytest.raises(UsageError, match="no samples"):
        percent([])


class TestDelta:
    def test_mean_and_sample_deviation_of_absolute_values(self) -> None:
        delta = delta_to_retrain([80.0, 76.0, 84.0], [78.0, 78.0, 78.0])
        assert delta.mean == pytest.approx(10 / 3)
        assert delta.sd == pytest.approx(np.std([2, 2, 6], ddof=1))
        assert delta.difference_of_means == pytest.approx(2.0)
        assert (delta.targets, str(delta)) == (3, "3.3 ± 2.3")

    def test_one_target_has_no_deviation(self) -> None:
        assert str(delta_to_retrain([80.0], [78.0])) == "2.0"

    @given(st.lists(st.tuples(points, points), min_size=1, max_size=12))
    def test_the_mean_is_never_below_the_difference_of_means(self, pairs: list[tuple[float, float]]) -> None:
        delta = delta_to_retrain([a for a, _ in pairs], [b for _, b in pairs])
        assert delta.mean >= abs(delta.difference_of_means) - 1e-9

    def test_contradictory_figures_are_refused(self) -> None:
        with pytest.raises(UsageError, match="do not come from the same runs"):
            Delta(mean=3.4, sd=1.0, difference_of_means=-15.4, targets=10)

    @pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0]), ([math.nan], [1.0])])
    def test_incomplete_pairs_are_refused(self, ours: list[float], theirs: list[float]) -> None:
        with pytest.raises(UsageError):
            delta_to_retrain(ours, theirs)


class TestRecovery:
    def test_the_first_crossing_counts_from_the_unlearned_model(self) -> None:
        assert recovery([70.0, 78.0, 77.0, 80.0], 78.0) == Recovery(1, True)
        assert recovery([79.0], 78.0) == Recovery(0, True)

    def test_a_run_without_recovery_is_marked(self) -> None:
        lower_bound = recovery([10.0, 20.0, math.nan, 30.0], 78.0)
        assert lower_bound == Recovery(3, False)
        assert str(lower_bound) == "> 3"

    def test_near_is_within_a_point_of_the_retrained_model(self) -> None:
        assert recovery_near([70.0, 76.9, 77.0, 79.0], 78.0) == Recovery(2, True)

    def test_runs_without_recovery_stay_in_the_mean(self) -> None:
        summary = summarise_recoveries([Recovery(2, True), Recovery(25, False)])
        assert (summary.mean, summary.recovered, summary.targets) == (13.5, 1, 2)
        assert str(summary) == "≥ 13.5 ± 16.3 (1 of 2 recovered)"
        assert str(summarise_recoveries([Recovery(4, True)])) == "4.0"

    def test_empty_input_is_refused(self) -> None:
        with pytest.raises(UsageError):
            recovery([], 1.0)
        with pytest.raises(UsageError):
            summarise_recoveries([])
