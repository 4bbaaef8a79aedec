from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.errors import UsageError
from puf_lab.evaluation.metrics import (
    Delta,
    Recovery,
    accuracy,
    delta_to_retrain,
    percent,
    recovery,
    recovery_near,
    summarise_recoveries,
)

points = st.floats(0, 100)


class TestAccuracy:
    def test_classes_or_scores(self) -> None:
        assert accuracy([1, 2, 0, 0], [1, 2, 0, 1]) == 75.0
        assert accuracy([[0.1, 0.9], [0.8, 0.2]], [1, 1]) == 50.0
        assert percent([1.0, 0.5]) == 75.0

    @pytest.mark.parametrize(("predictions", "labels"), [([], []), ([1], [1, 2])])
    def test_nonsense_is_refused(self, predictions: list[int], labels: list[int]) -> None:
        with pytest.raises(UsageError):
            accuracy(predictions, labels)


class TestDelta:
    def test_mean_and_sample_deviation_of_absolute_values(self) -> None:
        delta = delta_to_retrain([80.0, 76.0, 84.0], [78.0, 78.0, 78.0])
        assert delta.mean == pytest.approx(10 / 3)
        assert delta.sd == pytest.approx(np.std([2, 2, 6], ddof=1))
        assert delta.difference_of_means == pytest.approx(2.0)
        assert (delta.targets, str(delta)) == (3, "3.3 ± 2.3")

    def test_one_target_has_no_spread(self) -> None:
        assert str(delta_to_retrain([80.0], [78.0])) == "2.0"

    @given(st.lists(st.tuples(points, points), min_size=1, max_size=12))
    def test_never_below_the_difference_of_means(self, pairs: list[tuple[float, float]]) -> None:
        delta = delta_to_retrain([a for a, _ in pairs], [b for _, b in pairs])
        assert delta.mean >= abs(delta.difference_of_means) - 1e-9

    def test_figures_that_cannot_be_are_refused(self) -> None:
        with pytest.raises(UsageError, match="do not come from the same runs"):
            Delta(mean=3.4, sd=1.0, difference_of_means=-15.4, targets=10)

    @pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0]), ([math.nan], [1.0])])
    def test_pairs_must_be_whole(self, ours: list[float], theirs: list[float]) -> None:
        with pytest.raises(UsageError):
            delta_to_retrain(ours, theirs)


class TestRecovery:
    def test_first_crossing_counts_from_right_after_unlearning(self) -> None:
        assert recovery([70.0, 78.0, 77.0, 80.0], 78.0) == Recovery(1, True)
        assert recovery([79.0], 78.0) == Recovery(0, True)

    def test_never_is_said(self) -> None:
        never = recovery([10.0, 20.0, math.nan, 30.0], 78.0)
        assert never == Recovery(3, False)
        assert str(never) == "> 3"

    def test_within_a_point_of_the_retrained_model(self) -> None:
        assert recovery_near([70.0, 76.9, 77.0, 79.0], 78.0) == Recovery(2, True)

    def test_nobody_is_dropped_from_the_mean(self) -> None:
        summary = summarise_recoveries([Recovery(2, True), Recovery(25, False)])
        assert (summary.mean, summary.recovered, summary.targets) == (13.5, 1, 2)
        assert str(summary) == "≥ 13.5 ± 16.3 (1 of 2 recovered)"
        assert str(summarise_recoveries([Recovery(4, True)])) == "4.0"

    def test_nothing_is_refused(self) -> None:
        with pytest.raises(UsageError):
            recovery([], 1.0)
        with pytest.raises(UsageError):
            summarise_recoveries([])
