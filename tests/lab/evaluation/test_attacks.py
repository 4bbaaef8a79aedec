from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puf_common.errors import UsageError
from puf_lab.evaluation import attacks
from puf_lab.evaluation.attacks import song, song_threshold, yeom, yeom_members, yeom_threshold

confidences = st.lists(st.floats(0, 1), min_size=1, max_size=20)


class TestYeom:
    def test_worked_numbers(self) -> None:
        assert yeom_threshold([(1.2, 3)]) == pytest.approx(0.4)
        assert yeom([0.1, 0.3, 0.8], [0.2, 0.39, 0.41, 2.0]) == 50.0

    def test_clients_need_only_tell_their_sums(self) -> None:
        assert yeom_threshold([(0.1, 1), (1.1, 2)]) == pytest.approx(0.4)
        assert yeom_members([0.2, 0.4, 0.41, math.inf], 0.4) == 2

    def test_refuses_what_says_nothing(self) -> None:
        for sums in ([], [(math.inf, 3)], [(math.nan, 3)]):
            with pytest.raises(UsageError):
                yeom_threshold(sums)
        with pytest.raises(UsageError, match="1 of 2 samples are not a number"):
            yeom([0.1], [0.2, math.nan])
        with pytest.raises(UsageError):
            yeom([0.1], [])


class TestSongThreshold:
    def test_worked_numbers(self) -> None:
        attack = song_threshold([0.9, 0.8, 0.95, 0.4], [0.3, 0.5, 0.2, 0.85], [0.96, 0.7, 0.99, 0.1])
        assert (attack.threshold, attack.balanced_accuracy, attack.members) == (0.9, 0.75, 50.0)

    @given(confidences, confidences, confidences)
    def test_is_the_best_there_is_in_any_order(
        self, inside: list[float], outside: list[float], forget: list[float]
    ) -> None:
        attack = song_threshold(inside, outside, forget)

        def balanced(threshold: float) -> float:
            return float(np.mean(np.array(inside) >= threshold) + np.mean(np.array(outside) < threshold)) / 2

        assert attack.balanced_accuracy == pytest.approx(balanced(attack.threshold))
        assert attack.balanced_accuracy == pytest.approx(max(balanced(t) for t in [*inside, *outside]))
        assert attack == song_threshold(inside[::-1], outside[::-1], forget[::-1])


class TestSong:
    members = np.linspace(0.8, 1.0, 60)
    strangers = np.linspace(0.0, 0.5, 90)

    def test_separates_what_is_separable(self) -> None:
        assert song(self.members, self.strangers, [0.95, 0.9, 0.1, 0.2], seed=0) == 50.0

    def test_is_the_machine_of_the_paper(self) -> None:
        from sklearn.svm import SVC

        random = np.random.default_rng(5)
        inside, outside, forget = random.beta(5, 2, 40), random.beta(2, 2, 40), random.uniform(size=30)
        machine = SVC(kernel="rbf", C=3, gamma=1.0)  # "auto" is 1 for one feature
        machine.fit(np.concatenate([inside, outside])[:, None], [1] * 40 + [0] * 40)
        assert song(inside, outside, forget, seed=1) == pytest.approx(100 * machine.predict(forget[:, None]).mean())

    def test_the_seed_decides_and_the_order_does_not(self) -> None:
        random = np.random.default_rng(0)
        inside, outside, forget = random.beta(4, 2, 300), random.beta(2, 2, 50), random.uniform(size=200)
        first = song(inside, outside, forget, seed=3)
        assert first == song(inside[::-1], random.permutation(outside), forget, seed=3)
        assert len({song(inside, outside, forget, seed=s) for s in range(6)}) > 1

    def test_sides_are_balanced(self) -> None:
        # Nothing to tell apart: with 20 times as many members a prior would call everything a member.
        same = np.linspace(0, 1, 40)
        assert song(np.tile(same, 20), same, same, seed=0) < 90

    def test_the_limit_holds(self) -> None:
        assert song(self.members, self.strangers, [0.95, 0.1], seed=0, limit=5) == 50.0

    @settings(max_examples=10, deadline=None)
    @given(confidences, confidences, confidences)
    def test_is_a_percentage(self, inside: list[float], outside: list[float], forget: list[float]) -> None:
        assert 0 <= song(inside, outside, forget, seed=0) <= 100

    def test_refuses_nothing_to_learn_from(self) -> None:
        with pytest.raises(UsageError, match="member confidences"):
            song([], [0.5], [0.5], seed=0)


class TestRmia:
    def test_worked_by_hand(self) -> None:
        """Unseen ratios are 1 throughout; three of four forgotten samples are likelier than to the reference model."""
        forget = ([0.8, 0.9, 0.4, 0.1], [0.4, 0.3, 0.2, 0.4])
        unseen = ([0.5] * 8, [0.5] * 8)
        found = attacks.rmia(forget, unseen, seed=1)
        # Ratios 2, 3, 2 and 0.25 against a population at 1: scores 1, 1, 1, 0; the unseen have 1. Ties count a half.
        assert found.auc == (3 * 0.5 + 0.0) / 4
        assert (found.member_at_1, found.traced_at_1) == (0.0, 0.25)

    def test_a_model_against_itself_is_undecided(self) -> None:
        confidences = np.linspace(0.01, 0.99, 50)
        found = attacks.rmia((confidences, confidences), (confidences, confidences), seed=3)
        assert found.auc == 0.5

    def test_members_are_found_and_the_forgotten_too(self) -> None:
        random = np.random.default_rng(0)
        reference = random.uniform(0.1, 0.5, 400)
        unseen = (reference * random.uniform(0.9, 1.1, 400), reference)
        members = attacks.rmia((np.minimum(1, 2 * reference), reference), unseen, seed=1)
        assert (members.auc, members.member_at_1) == (1.0, 1.0)
        forgotten = attacks.rmia((reference / 4, reference), unseen, seed=1)
        assert forgotten.auc < 0.01
        assert (forgotten.member_at_1, forgotten.traced_at_1) == (0.0, 1.0)

    def test_what_does_not_fit_is_told(self) -> None:
        with pytest.raises(UsageError, match="the same samples"):
            attacks.rmia(([0.1], [0.1, 0.2]), ([0.1, 0.2], [0.1, 0.2]), seed=1)
        with pytest.raises(UsageError, match="at least two unseen"):
            attacks.rmia(([0.1], [0.1]), ([0.1], [0.1]), seed=1)
