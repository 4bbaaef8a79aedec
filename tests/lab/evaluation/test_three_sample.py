"""The three-sample test: worked numbers and its behaviour under both hypotheses."""

from __future__ import annotations

import numpy as np
import pytest

from puf_common.errors import UsageError
from puf_lab.evaluation.three_sample import three_sample_test


def test_worked_numbers() -> None:
    """|u - o| = 0.4, 0.2 and |u - r| = 0.1, 0.1: closer to the retrained model by 0.2 on average.

    Of the four assignments of signs two are as extreme (+0.3 + 0.1 and its negative), so p is one half.
    """
    found = three_sample_test([0.5, 0.6], [0.4, 0.5], [0.9, 0.8], seed=1, draws=20_000)
    assert found.closer == pytest.approx(20.0)
    assert found.p == pytest.approx(0.5, abs=0.02)


def test_the_original_is_closest_to_itself_and_retrain_to_itself() -> None:
    random = np.random.default_rng(1)
    retrained, original = random.uniform(0.1, 0.5, 100), random.uniform(0.6, 1.0, 100)
    as_retrained = three_sample_test(retrained, retrained, original, seed=1)
    as_original = three_sample_test(original, retrained, original, seed=1)
    assert as_retrained.closer == pytest.approx(-as_original.closer)
    assert as_retrained.closer > 0
    assert as_retrained.p == as_original.p == pytest.approx(1 / 2001)


def test_p_values_are_uniform_where_the_models_do_not_differ() -> None:
    random = np.random.default_rng(2)
    values = [three_sample_test(*random.uniform(size=(3, 40)), seed=i, draws=200).p for i in range(300)]
    assert np.mean(np.array(values) < 0.1) == pytest.approx(0.1, abs=0.05)


def test_other_samples_are_refused() -> None:
    with pytest.raises(UsageError, match="same samples"):
        three_sample_test([0.5], [0.5, 0.5], [0.5], seed=1)
