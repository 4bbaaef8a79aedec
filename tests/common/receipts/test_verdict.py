"""The verdict on a request: its rule, its words, and how often it is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.receipts.evidence import FEWEST, Attack, Finding, Verdict, histogram, song, yeom
from puf_common.receipts.gap import Gap
from puf_common.receipts.ranks import RankComparison, class_histogram, compare, compare_by_class
from puf_common.receipts.verdict import Judgement, Source, finding, judge, ranks_finding


@dataclass(frozen=True)
class Figures:
    own: RankComparison | None = None
    pool: RankComparison | None = None
    yeom: Attack | None = None
    song: Attack | None = None
    gap: Gap | None = None


def ranks(auc: float, forget: int = 60, unseen: int = 200) -> RankComparison:
    return RankComparison(auc=auc, forget_samples=forget, unseen_samples=unseen)


def own(auc: float, forget: int = 60, unseen: int = 200) -> Figures:
    return Figures(own=ranks(auc, forget, unseen))


def attack(forget: float, holdout: float, samples: int = 100) -> Attack:
    return Attack(
        threshold=0.5,
        forget_members=round(forget * samples),
        forget_samples=samples,
        holdout_members=round(holdout * samples),
        holdout_samples=samples,
    )


def judged(before: Figures | None, after: Figures | None) -> Judgement:
    found = judge(before, after)
    assert found is not None
    return found


class TestRule:
    # With 60 and 200 samples a standard error is 0.0426: ranks are told apart from 0.5 beyond 0.0955 and alike up to 0.08.
    @pytest.mark.parametrize(
        ("before", "after", "verdict", "says"),
        [
            (0.80, 0.52, Verdict.FORGOTTEN, "Now it treats both alike"),
            (0.80, 0.48, Verdict.FORGOTTEN, "Now it treats both alike"),
            # Not enough, nothing, and too much.
            (0.80, 0.62, Verdict.STILL_KNOWN, "more like its training data"),
            (0.80, 0.80, Verdict.STILL_KNOWN, "more like its training data"),
            (0.80, 0.30, Verdict.STILL_KNOWN, "does worse on the forgotten data"),
            # There was nothing to forget.
            (0.52, 0.52, Verdict.NOTHING_CHANGED, "already before"),
            (0.55, 0.47, Verdict.NOTHING_CHANGED, "already before"),
            # The model before knew the data, the model after does not; the difference is within chance.
            (0.60, 0.57, Verdict.NOTHING_CHANGED, "lies within chance"),
            # Neither alike nor different; the same for the model before.
            (0.80, 0.59, Verdict.TOO_FEW, "still knows"),
            (0.59, 0.50, Verdict.TOO_FEW, "knew the forgotten data before"),
            (0.52, 0.65, Verdict.STILL_KNOWN, "more like its training data"),
        ],
    )
    def test_compares_before_after_and_unseen(self, before: float, after: float, verdict: Verdict, says: str) -> None:
        found = judged(own(before), own(after))
        assert found.verdict is verdict
        assert says in found.reason

    def test_few_samples_allow_no_verdict(self) -> None:
        assert judged(own(1.0, FEWEST - 1), own(1.0, FEWEST - 1)).verdict is Verdict.TOO_FEW
        assert judged(own(0.9, 30, 12), own(0.5, 30, 12)).verdict is Verdict.TOO_FEW

    def test_many_samples_ignore_a_difference_that_does_not_matter(self) -> None:
        many = 100_000
        assert judged(own(0.8, many, many), own(0.54, many, many)).verdict is Verdict.FORGOTTEN
        assert judged(own(0.8, many, many), own(0.56, many, many)).verdict is Verdict.STILL_KNOWN

    def test_without_a_model_before_only_still_known_can_be_said(self) -> None:
        assert judged(None, own(0.8)).verdict is Verdict.STILL_KNOWN
        found = judged(None, own(0.5))
        assert found.verdict is None
        assert "nothing shows a change" in found.reason
        assert judged(Figures(pool=ranks(0.8)), own(0.5)).verdict is None

    def test_without_ranks_there_is_no_verdict(self) -> None:
        assert judge(own(0.8), None) is None
        assert judge(own(0.8), Figures(yeom=attack(0.9, 0.5))) is None
        assert finding(Figures(yeom=attack(0.9, 0.5))) is None

    def test_an_attack_that_separates_is_enough_for_still_known(self) -> None:
        found = judged(own(0.8), replace(own(0.5), song=attack(0.75, 0.5)))
        assert found.verdict is Verdict.STILL_KNOWN
        assert "membership attack" in found.reason
        # An attack with few samples says nothing.
        assert judged(own(0.8), replace(own(0.5), song=attack(1.0, 0.0, 8))).verdict is Verdict.FORGOTTEN

    def test_equal_attacks_before_and_after_are_not_forgotten(self) -> None:
        """Both attacks read 100 and 93 % before and after, and the ranks are equal: a page once called this a success."""
        same = replace(own(0.55), yeom=attack(1.0, 0.93), song=attack(1.0, 0.93))
        assert judged(same, same).verdict is Verdict.NOTHING_CHANGED


class TestSource:
    def test_the_own_hold_out_is_used_if_it_is_large_enough(self) -> None:
        figures = Figures(own=ranks(0.5, 60, 100), pool=ranks(0.8, 60, 500))
        assert judged(figures, figures).source is Source.OWN
        assert "the client's own hold-out" in judged(figures, figures).figures

    def test_otherwise_the_larger_number_of_samples(self) -> None:
        figures = Figures(own=ranks(0.9, 60, 20), pool=ranks(0.5, 60, 150))
        assert judged(figures, figures).source is Source.POOL
        assert "matched by label" in judged(figures, figures).figures
        figures = Figures(own=ranks(0.9, 60, 30), pool=ranks(0.5, 60, 12))
        assert judged(figures, figures).source is Source.OWN

    def test_both_models_are_compared_with_the_same_samples(self) -> None:
        found = judged(own(0.9, 60, 50), Figures(own=ranks(0.5, 60, 50), pool=ranks(0.5, 60, 500)))
        assert (found.source, found.before) == (Source.OWN, ranks(0.9, 60, 50))


AUC = st.floats(0, 1)
COUNT = st.integers(1, 5000)
FIGURES = st.builds(
    Figures,
    own=st.none() | st.builds(RankComparison, auc=AUC, forget_samples=COUNT, unseen_samples=COUNT),
    pool=st.none() | st.builds(RankComparison, auc=AUC, forget_samples=COUNT, unseen_samples=COUNT),
    yeom=st.none() | st.builds(attack, AUC, AUC, COUNT),
    song=st.none() | st.builds(attack, AUC, AUC, COUNT),
)


class TestProperties:
    @given(FIGURES)
    def test_equal_figures_are_never_forgotten(self, figures: Figures) -> None:
        found = judge(figures, figures)
        assert found is None or found.verdict is not Verdict.FORGOTTEN

    @given(FIGURES, FIGURES)
    def test_forgotten_means_known_before_and_alike_after(self, before: Figures, after: Figures) -> None:
        found = judge(before, after)
        if found is not None and found.verdict is Verdict.FORGOTTEN:
            assert found.before is not None
            assert ranks_finding(found.before) is Finding.NOT_LIKE_UNSEEN
            assert finding(after) is Finding.LIKE_UNSEEN or found.source is not judged(None, after).source
            assert abs(found.after.distance) < abs(found.before.distance)
        if found is not None:
            assert found.reason.endswith(".")
            assert "%" in found.figures

    @given(FIGURES, FIGURES)
    def test_the_verdict_is_the_same_in_a_mirror(self, before: Figures, after: Figures) -> None:
        """Knowing the data better and doing worse on it are treated alike."""

        def mirrored(figures: Figures) -> Figures:
            own, pool = (None if r is None else replace(r, auc=1 - r.auc) for r in (figures.own, figures.pool))
            return Figures(own, pool)

        plain = [Figures(f.own, f.pool) for f in (before, after)]
        found, other = judge(*plain), judge(*map(mirrored, plain))
        assert (found and found.verdict) == (other and other.verdict)


@dataclass(frozen=True)
class World:
    """Normal scores through a logistic curve. `known` shifts the forgotten samples; hard samples are hard for all models."""

    random: np.random.Generator
    forget: int = 60
    unseen: int = 200

    def scores(self, *known: float) -> list[Figures]:
        """Figures of models on the same samples, one for each value of `known`."""
        hard_f, hard_u = self.random.normal(0, 0.7, self.forget), self.random.normal(0, 0.7, self.unseen)
        return [self._figures(hard_f, hard_u, shift) for shift in known]

    def _figures(self, hard_f: np.ndarray, hard_u: np.ndarray, shift: float) -> Figures:
        noise = 0.51**0.5
        f, u, m = (
            1 / (1 + np.exp(-2 * x))
            for x in (
                hard_f + self.random.normal(shift, noise, self.forget),
                hard_u + self.random.normal(0, noise, self.unseen),
                self.random.normal(1.2, 1, 500),
            )
        )
        losses = float(-np.log(m).sum())
        return Figures(
            own=compare(f, u),
            yeom=yeom(-np.log(f), -np.log(u), loss_sum=losses, samples=500),
            song=song(f, u, members=histogram(m)),
        )


def counted(world: World, before: float, after: float, times: int = 1000) -> Counter[Verdict | None]:
    found: Counter[Verdict | None] = Counter()
    for _ in range(times):
        figures = judge(*world.scores(before, after))
        assert figures is not None
        found[figures.verdict] += 1
    return found


class TestCalibration:
    def test_a_model_that_never_saw_the_data_is_rarely_still_known(self) -> None:
        found = counted(World(np.random.default_rng(1)), 1.0, 0.0)
        assert 15 <= found[Verdict.STILL_KNOWN] <= 60
        assert found[Verdict.FORGOTTEN] >= 850

    def test_a_client_that_was_never_known_is_not_forgotten(self) -> None:
        found = counted(World(np.random.default_rng(2)), 0.0, 0.0)
        assert found[Verdict.STILL_KNOWN] <= 60
        assert found[Verdict.FORGOTTEN] <= 25
        assert found[Verdict.NOTHING_CHANGED] >= 850

    def test_a_model_at_the_tolerated_distance_is_rarely_forgotten(self) -> None:
        shift = 2**0.5 * NormalDist().inv_cdf(0.65)
        for sign in (1, -1):
            found = counted(World(np.random.default_rng([3, sign + 1])), 1.2, sign * shift)
            assert found[Verdict.FORGOTTEN] <= 60
            assert found[Verdict.STILL_KNOWN] >= 700

    def test_a_request_that_changed_nothing_is_not_forgotten(self) -> None:
        # The models before and after know the data equally well: a little, or well.
        for known in (0.4, 0.6, 1.0):
            found = counted(World(np.random.default_rng(4)), known, known)
            assert found[Verdict.FORGOTTEN] <= 25

    def test_few_samples_are_called_few(self) -> None:
        found = counted(World(np.random.default_rng(5), forget=30, unseen=15), 1.0, 0.0)
        assert found[Verdict.TOO_FEW] >= 850
        assert found[Verdict.STILL_KNOWN] <= 60

    def test_a_pool_with_another_label_mix_keeps_the_level(self) -> None:
        """Classes differ in difficulty, and the target has mostly hard ones. The pool has mostly easy ones, in bins."""
        random = np.random.default_rng(6)
        difficulty, mine, theirs = np.linspace(-1.5, 1.5, 5), (0.4, 0.3, 0.1, 0.1, 0.1), (0.1, 0.1, 0.2, 0.3, 0.3)
        wrong = 0
        for _ in range(1000):
            f, u = random.choice(5, 60, p=mine), random.choice(5, 300, p=theirs)
            scores = [1 / (1 + np.exp(-2 * (difficulty[c] + random.normal(0, 1, c.size)))) for c in (f, u)]
            found = compare_by_class(scores[0], f, class_histogram(scores[1], u))
            assert found is not None
            wrong += ranks_finding(found) is Finding.NOT_LIKE_UNSEEN
        assert 5 <= wrong <= 35


def test_the_figures_state_before_after_unseen_and_what_is_detectable() -> None:
    assert judged(own(0.93), own(0.55)).figures == (
        "The model is more confident about a forgotten sample than about an unseen one in this share of pairs: 93 % before → "
        "55 % after (48 to 62 %) → 50 % for unseen data. Compared: 60 forgotten with 200 unseen samples, the client's own "
        "hold-out. With so many samples a distance of 13 points or more is found in 4 of 5 cases."
    )
    assert "not measured before" in judged(None, own(0.55)).figures


def test_a_gap_that_closed_is_a_change_where_ranks_of_few_samples_show_none() -> None:
    # The gap falls by 0.19, which is 3.8 standard errors.
    open_gap, closed = Gap(value=0.20, error=0.03), Gap(value=0.01, error=0.04)
    large = [RankComparison(auc=a, forget_samples=300, unseen_samples=300) for a in (0.57, 0.54)]
    ranks_alone = judge(Figures(own=large[0]), Figures(own=large[1]))
    with_gap = judge(Figures(own=large[0], gap=open_gap), Figures(own=large[1], gap=closed))
    same_gap = judge(Figures(own=large[0], gap=open_gap), Figures(own=large[1], gap=open_gap))
    assert ranks_alone is not None
    assert with_gap is not None
    assert same_gap is not None
    assert (ranks_alone.verdict, same_gap.verdict) == (Verdict.NOTHING_CHANGED, Verdict.NOTHING_CHANGED)
    assert with_gap.verdict is Verdict.FORGOTTEN
