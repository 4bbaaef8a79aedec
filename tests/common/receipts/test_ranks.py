"""Rank comparisons: the statistic, its interval, the smallest detectable distance, and classes."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.errors import InvalidArgument
from puf_common.receipts.evidence import BINS, Z95, Z975
from puf_common.receipts.ranks import MOST_CLASSES, RankComparison, change, class_histogram, compare, compare_by_class

CONFIDENCES = st.lists(st.floats(0, 1), min_size=1, max_size=30)
RANKS = st.builds(
    RankComparison, auc=st.floats(0, 1), forget_samples=st.integers(1, 10**6), unseen_samples=st.integers(1, 10**6)
)


def ranks(auc: float, forget: int = 60, unseen: int = 200) -> RankComparison:
    return RankComparison(auc=auc, forget_samples=forget, unseen_samples=unseen)


class TestCompare:
    def test_counts_pairs_in_order_and_ties_as_a_half(self) -> None:
        # Of 6 pairs, 3 are in order and 1 is a tie: (0.9 > 0.1, 0.5, tie), (0.2 > 0.1).
        found = compare([0.9, 0.2], [0.1, 0.5, 0.9])
        assert found == RankComparison(auc=3.5 / 6, forget_samples=2, unseen_samples=3)

    @given(CONFIDENCES, CONFIDENCES)
    def test_is_symmetric(self, forget: list[float], unseen: list[float]) -> None:
        assert compare(forget, unseen).auc == pytest.approx(1 - compare(unseen, forget).auc)

    @given(CONFIDENCES)
    def test_data_against_itself_is_like_unseen(self, values: list[float]) -> None:
        assert compare(values, values).auc == 0.5


class TestByClass:
    def test_one_class_gives_the_statistic_of_binned_values_and_the_same_counts(self) -> None:
        random = np.random.default_rng(1)
        forget, unseen = random.beta(4, 2, 60), random.beta(2, 2, 217)
        found = compare_by_class(forget, np.zeros(60, int), class_histogram(unseen, np.zeros(217, int)))
        plain = compare(np.floor(forget * BINS), np.floor(unseen * BINS))
        assert found is not None
        assert found.auc == pytest.approx(plain.auc)
        assert (found.forget_samples, found.unseen_samples) == (60, 217)

    def test_samples_are_compared_within_their_class(self) -> None:
        # Class 1 is harder for every model. The forgotten samples are mostly of class 1, the unseen ones of class 0.
        unseen = class_histogram([0.9] * 90 + [0.3] * 10, [0] * 90 + [1] * 10)
        found = compare_by_class([0.9] * 10 + [0.3] * 90, [0] * 10 + [1] * 90, unseen)
        assert found is not None
        assert found.auc == 0.5
        # Ten samples of class 1 decide: 100 unseen samples are hardly more exact than they.
        assert found.unseen_samples == 12

    def test_classes_without_unseen_samples_are_left_out(self) -> None:
        unseen = class_histogram([0.5] * 8, [1] * 8)
        found = compare_by_class([0.9, 0.9, 0.1], [0, 1, 7], unseen)
        assert found == RankComparison(auc=1.0, forget_samples=1, unseen_samples=8)
        assert compare_by_class([0.9], [0], unseen) is None

    @given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5)), min_size=1, max_size=40))
    def test_the_table_counts_every_sample_once(self, drawn: list[tuple[float, int]]) -> None:
        table = class_histogram([c for c, _ in drawn], [k for _, k in drawn])
        assert sum(table) == len(drawn)
        assert len(table) % BINS == 0
        counts = np.reshape(table, (-1, BINS)).sum(axis=1)
        assert counts.tolist() == np.bincount([k for _, k in drawn]).tolist()

    @given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5)), min_size=1, max_size=40), st.integers(1, 30))
    def test_data_against_itself_is_like_unseen(self, drawn: list[tuple[float, int]], times: int) -> None:
        confidences, classes = [c for c, _ in drawn], [k for _, k in drawn]
        found = compare_by_class(confidences, classes, class_histogram(confidences * times, classes * times))
        assert found is not None
        assert found.auc == pytest.approx(0.5)
        assert 1 <= found.unseen_samples <= len(drawn) * times

    def test_a_table_of_too_many_classes_is_empty(self) -> None:
        assert len(class_histogram([0.5], [MOST_CLASSES - 1])) == BINS * MOST_CLASSES
        assert class_histogram([0.5], [MOST_CLASSES]) == ()

    @pytest.mark.parametrize("unseen", [[], [1] * (BINS - 1), [-1] * BINS])
    def test_refuses_what_is_no_table(self, unseen: list[int]) -> None:
        with pytest.raises(InvalidArgument):
            compare_by_class([0.5], [0], unseen)

    @pytest.mark.parametrize("classes", [[0, 1], [-1], [0.5]])
    def test_refuses_what_is_no_class(self, classes: list[float]) -> None:
        with pytest.raises(InvalidArgument):
            compare_by_class([0.5], classes, [1] * BINS)


class TestInterval:
    def test_at_one_half_it_is_the_rank_sum_test(self) -> None:
        # The standard error of the rank-sum test with 60 and 200 samples is sqrt(261 / (12 * 60 * 200)) = 0.04257.
        error = (261 / (12 * 60 * 200)) ** 0.5
        assert not ranks(0.5 + Z975 * error - 1e-9).excludes(0.5, Z975)
        assert ranks(0.5 + Z975 * error + 1e-9).excludes(0.5, Z975)

    def test_worked_numbers(self) -> None:
        # At the upper end 0.8122 the variance is 0.8122 * 0.1878 / 12000 * (1 + 129 * (0.1581 + 0.4482)) = 0.0010069,
        # and (0.8122 - 0.75) / sqrt(0.0010069) = 1.96.
        low, high = ranks(0.75).interval(Z95)
        assert (low, high) == (pytest.approx(0.6727, abs=1e-4), pytest.approx(0.8122, abs=1e-4))
        # All pairs in order: the interval does not collapse. At 0.8 the variance is 0.16 / 100 * (1 + 9 * 0.6111) = 0.0104,
        # and 0.2 / sqrt(0.0104) = 1.96.
        low, high = ranks(1.0, 10, 10).interval(Z95)
        assert (low, high) == (pytest.approx(0.8002, abs=1e-4), 1.0)

    @given(RANKS)
    def test_contains_the_figure_and_lies_in_the_unit_interval(self, found: RankComparison) -> None:
        low, high = found.interval(Z95)
        assert 0 <= low <= found.auc <= high <= 1
        wider = found.interval(Z975)
        assert wider[0] <= low + 1e-9
        assert wider[1] >= high - 1e-9

    @given(RANKS)
    def test_is_symmetric(self, found: RankComparison) -> None:
        mirrored = RankComparison(
            auc=1 - found.auc, forget_samples=found.forget_samples, unseen_samples=found.unseen_samples
        )
        low, high = found.interval(Z95)
        assert mirrored.interval(Z95) == (pytest.approx(1 - high, abs=1e-9), pytest.approx(1 - low, abs=1e-9))

    @pytest.mark.parametrize("shift", [0.0, 0.5, 1.0, 2.0])
    @pytest.mark.parametrize(("forget", "unseen"), [(60, 60), (60, 360), (200, 50)])
    def test_covers_the_true_figure_in_95_of_100_cases(self, shift: float, forget: int, unseen: int) -> None:
        random = np.random.default_rng([forget, unseen, int(10 * shift)])
        truth = NormalDist().cdf(shift / 2**0.5)
        covered = 0
        for _ in range(1000):
            low, high = compare(random.normal(shift, 1, forget), random.normal(0, 1, unseen)).interval(Z95)
            covered += low <= truth <= high
        assert 930 <= covered <= 985

    def test_detects_the_stated_distance_in_80_of_100_cases(self) -> None:
        stated = ranks(0.5).detectable(Z975)
        assert stated == pytest.approx(0.1313, abs=1e-3)
        random = np.random.default_rng(5)
        shift = 2**0.5 * NormalDist().inv_cdf(0.5 + stated)
        found = [compare(random.normal(shift, 1, 60), random.normal(0, 1, 200)) for _ in range(1000)]
        assert 770 <= sum(f.excludes(0.5, Z975) for f in found) <= 850

    def test_few_samples_detect_nothing_but_the_largest_distance(self) -> None:
        assert ranks(0.5, 1, 1).detectable(Z975) == 0.5


class TestChange:
    @given(RANKS)
    def test_equal_figures_are_no_change(self, found: RankComparison) -> None:
        low, high = change(found, found, Z95)
        assert low <= 0 <= high

    def test_worked_numbers(self) -> None:
        # The ends are 0.23 - hypot(0.75 - 0.6727, 0.6013 - 0.52) and 0.23 + hypot(0.8122 - 0.75, 0.52 - 0.4374).
        low, high = change(ranks(0.75), ranks(0.52), Z95)
        assert (low, high) == (pytest.approx(0.1178, abs=1e-4), pytest.approx(0.3334, abs=1e-4))


@pytest.mark.parametrize("values", [(-0.1, 1, 1), (1.1, 1, 1), (float("nan"), 1, 1), (0.5, 0, 1), (0.5, 1, 0)])
def test_impossible_figures_are_refused(values: tuple[float, int, int]) -> None:
    with pytest.raises(InvalidArgument):
        ranks(*values)
