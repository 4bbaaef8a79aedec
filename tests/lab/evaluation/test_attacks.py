from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puf_common.errors import UsageError
from puf_lab.evaluation import attacks
from puf_lab.evaluation.attacks import song, yeom

confidences = st.lists(st.floats(0, 1), min_size=1, max_size=20)


class TestYeom:
    def test_share_of_losses_at_most_the_mean_retained_loss(self) -> None:
        assert yeom([0.1, 0.3, 0.8], [0.2, 0.39, 0.41, 2.0]) == 50.0
        assert yeom([0.25, 0.75], [0.2, 0.5, 0.51, math.inf]) == 50.0

    def test_input_without_information_is_refused(self) -> None:
        with pytest.raises(UsageError, match="not finite; the model has diverged"):
            yeom([0.1, math.inf], [0.2])
        with pytest.raises(UsageError, match="1 of 2 samples are not a number"):
            yeom([0.1], [0.2, math.nan])
        with pytest.raises(UsageError):
            yeom([0.1], [])


class TestSong:
    members = np.linspace(0.8, 1.0, 60)
    non_members = np.linspace(0.0, 0.5, 90)

    def test_separable_sides_are_separated(self) -> None:
        assert song(self.members, self.non_members, [0.95, 0.9, 0.1, 0.2], seed=0) == 50.0

    def test_it_is_the_support_vector_machine_of_the_paper(self) -> None:
        from sklearn.svm import SVC

        random = np.random.default_rng(5)
        inside, outside, forget = random.beta(5, 2, 40), random.beta(2, 2, 40), random.uniform(size=30)
        machine = SVC(kernel="rbf", C=3, gamma=1.0)  # "auto" is 1 for one feature
        machine.fit(np.concatenate([inside, outside])[:, None], [1] * 40 + [0] * 40)
        assert song(inside, outside, forget, seed=1) == pytest.approx(100 * machine.predict(forget[:, None]).mean())

    def test_the_result_depends_on_the_seed_and_not_on_the_order(self) -> None:
        random = np.random.default_rng(0)
        inside, outside, forget = random.beta(4, 2, 300), random.beta(2, 2, 50), random.uniform(size=200)
        first = song(inside, outside, forget, seed=3)
        assert first == song(inside[::-1], random.permutation(outside), forget, seed=3)
        assert len({song(inside, outside, forget, seed=s) for s in range(6)}) > 1

    def test_both_sides_are_cut_to_the_same_size(self) -> None:
        # The sides are equal. With 20 times as many members, an unbalanced machine would call every sample a member.
        same = np.linspace(0, 1, 40)
        assert song(np.tile(same, 20), same, same, seed=0) < 90

    def test_the_limit_bounds_the_training_samples(self) -> None:
        assert song(self.members, self.non_members, [0.95, 0.1], seed=0, limit=5) == 50.0

    @settings(max_examples=10, deadline=None)
    @given(confidences, confidences, confidences)
    def test_the_result_is_a_percentage(self, inside: list[float], outside: list[float], forget: list[float]) -> None:
        assert 0 <= song(inside, outside, forget, seed=0) <= 100

    def test_an_empty_side_is_refused(self) -> None:
        with pytest.raises(UsageError, match="member confidences"):
            song([], [0.5], [0.5], seed=0)


class TestRmia:
    def test_worked_example(self) -> None:
        """All unseen ratios are 1. Three of four forgotten samples are likelier than under the reference model."""
        forget = ([0.8, 0.9, 0.4, 0.1], [0.4, 0.3, 0.2, 0.4])
        unseen = ([0.5] * 8, [0.5] * 8)
        found = attacks.rmia(forget, unseen)
        # Ratios 2, 3, 2 and 0.25; the unseen samples have 1.
        assert found.auc == 3 / 4
        assert (found.member_at_1, found.member_at_01, found.traced_at_1) == (0.75, 0.75, 0.25)

    def test_a_model_against_itself_has_auc_one_half(self) -> None:
        confidences = np.linspace(0.01, 0.99, 50)
        found = attacks.rmia((confidences, confidences), (confidences, confidences))
        assert (found.auc, found.member_at_1, found.traced_at_1) == (0.5, 0.0, 0.0)

    @pytest.mark.parametrize("size", [10, 360, 2000])
    def test_members_and_traces_of_forgetting_are_found(self, size: int) -> None:
        """The ratios of both sides are apart, so every rate of every draw is 1. Shares of a population would tie at 1."""
        for seed in range(20):
            random = np.random.default_rng(seed)
            reference = random.uniform(0.1, 0.5, size)
            unseen = (reference * random.uniform(0.9, 1.1, size), reference)
            members = attacks.rmia((2 * reference, reference), unseen)
            assert (members.auc, members.member_at_1, members.member_at_01) == (1.0, 1.0, 1.0)
            forgotten = attacks.rmia((reference / 4, reference), unseen)
            assert (forgotten.auc, forgotten.member_at_1, forgotten.traced_at_1) == (0.0, 0.0, 1.0)

    def test_true_positives_at_two_false_positive_rates(self) -> None:
        """Of 4,000 non-members 40 pass at 1 % and 4 at 0.1 %. Members lie between these thresholds."""
        ratios = np.random.default_rng(0).permutation(np.arange(4000) / 4000)
        unseen = (ratios, np.ones(4000))
        rates = {
            passing: attacks.rmia((np.full(10, (4000 - passing - 0.5) / 4000), np.ones(10)), unseen)
            for passing in (3, 4, 5, 40, 41)
        }
        assert {n: (r.member_at_1, r.member_at_01) for n, r in rates.items()} == {
            3: (1.0, 1.0), 4: (1.0, 1.0), 5: (1.0, 0.0), 40: (1.0, 0.0), 41: (0.0, 0.0),
        }  # fmt: skip

    def test_inputs_that_do_not_match_are_refused(self) -> None:
        with pytest.raises(UsageError, match="the same samples"):
            attacks.rmia(([0.1], [0.1, 0.2]), ([0.1, 0.2], [0.1, 0.2]))
        with pytest.raises(UsageError, match="unseen confidences"):
            attacks.rmia(([0.1], [0.1]), ([], []))
