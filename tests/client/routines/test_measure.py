"""The measurement of a model: sums for the federation, ranks and attacks on the client's data."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from puf_client.routines.measure import WORST_LOSS, ModelMeasurement, measure, summed
from puf_client.routines.per_sample import PerSample
from puf_common.receipts.evidence import BINS
from puf_common.receipts.gap import table
from puf_common.receipts.ranks import RankComparison
from puf_common.v1 import tickets_pb2 as tk


def samples(losses: list[float], confidences: list[float], classes: list[int] | None = None) -> PerSample:
    return PerSample(
        np.array(losses),
        np.array([c > 0.5 for c in confidences], dtype=np.float64),
        np.array(confidences),
        np.array(classes or [0] * len(losses)),
        max(classes or [0]) + 1,
    )


TRAINING = tk.EvaluationSums(samples=4, loss_sum=1.2, score_sum=4.0, confidences=[0] * (BINS - 1) + [4])
RETAINED = tk.RetainedSums(training=TRAINING)


def retained(confidences: list[float], labels: list[int], classes: int) -> tk.RetainedSums:
    """Sums of retained clients with these hold-out samples."""
    holdout = tk.ClassTable(**asdict(table(confidences, labels, classes)))
    return tk.RetainedSums(training=TRAINING, holdout=holdout)


REMEMBERED, HOLDOUT = samples([0.1] * 40, [0.97] * 40), samples([1.0] * 40, [0.3] * 40)


def test_only_sums_and_counts_leave_the_client() -> None:
    sums = summed(samples([0.5, 1.5], [0.97, 0.01]))
    assert (sums.samples, sums.loss_sum, sums.score_sum) == (2, 2.0, 1.0)
    assert {i: n for i, n in enumerate(sums.confidences) if n} == {0: 1, 19: 1}
    assert not sums.HasField("classes")
    by_class = summed(samples([0.5, 1.5], [0.75, 0.25], [2, 0]), by_class=True).classes
    assert {i: n for i, n in enumerate(by_class.bins) if n} == {5: 1, 2 * BINS + 15: 1}
    assert (len(by_class.bins), list(by_class.sums), list(by_class.squares)) == (
        3 * BINS,
        [0.25, 0, 0.75],
        [0.0625, 0, 0.5625],
    )


def test_losses_that_are_not_finite_count_as_the_worst() -> None:
    sums = summed(samples([0.5, np.inf, np.nan], [0.97, 0.01, np.nan]))
    assert (sums.samples, sums.loss_sum) == (3, 0.5 + 2 * WORST_LOSS)
    assert sum(sums.confidences) == 3


def test_both_attacks_use_the_clients_data() -> None:
    found = measure(REMEMBERED, HOLDOUT, RETAINED)
    assert found.yeom is not None
    assert found.song is not None
    assert (found.yeom.threshold, found.yeom.forget_members, found.yeom.holdout_members) == (0.3, 40, 0)
    assert (found.song.threshold, found.song.forget_members, found.song.holdout_members) == (0.95, 40, 0)


def test_ranks_use_the_own_hold_out_and_the_others_by_class() -> None:
    forget = samples([0.1] * 4, [0.97, 0.97, 0.3, 0.3], [0, 0, 1, 1])
    holdout = samples([1.0] * 2, [0.5, 0.99])
    # Class 0 has unseen samples in the same bin, class 1 has lower ones; class 2 does not count.
    unseen = retained([0.98] * 10 + [0.1] * 10 + [0.9] * 50, [0] * 10 + [1] * 10 + [2] * 50, 3)
    found = measure(forget, holdout, unseen)
    assert found.own == RankComparison(auc=0.25, forget_samples=4, unseen_samples=2)
    assert found.pool is not None
    assert (found.pool.auc, found.pool.forget_samples) == (0.75, 4)
    alone = measure(forget, None, unseen)
    assert (alone.own, alone.pool) == (None, found.pool)


def test_the_gap_compares_with_all_hold_outs_of_the_same_classes() -> None:
    forget = samples([0.1] * 4, [0.9, 0.9, 0.5, 0.5], [0, 0, 1, 1])
    unseen = retained([0.7] * 30 + [0.4] * 30, [0] * 30 + [1] * 30, 2)
    found = measure(forget, None, unseen).gap
    assert found is not None
    assert found.value == pytest.approx(0.15, abs=1e-5)
    # The own hold-out joins the pool: class 0 has a mean of (30 * 0.7 + 30 * 0.8) / 60.
    more = measure(forget, samples([0.5] * 31, [0.8] * 30 + [0.4], [0] * 30 + [1]), unseen).gap
    assert more is not None
    assert more.value == pytest.approx(0.125, abs=1e-5)
    # A large own hold-out is compared with alone.
    large = measure(forget, samples([0.5] * 200, [0.6] * 100 + [0.3] * 100, [0] * 100 + [1] * 100), unseen).gap
    assert large is not None
    assert large.value == pytest.approx(0.25, abs=1e-5)


def test_without_hold_out_or_retained_sums_there_are_no_attacks() -> None:
    alone = measure(REMEMBERED, None, RETAINED)
    assert (alone.holdout, alone.yeom, alone.song, alone.own, alone.pool) == (None, None, None, None, None)
    unaided = measure(REMEMBERED, HOLDOUT, None)
    assert unaided.holdout is not None
    assert (unaided.yeom, unaided.song) == (None, None)
    assert unaided.own == RankComparison(auc=1.0, forget_samples=40, unseen_samples=40)
    sums = tk.EvaluationSums(samples=4, loss_sum=1.2, score_sum=4.0)
    partly = measure(REMEMBERED, HOLDOUT, tk.RetainedSums(training=sums))
    assert partly.yeom is not None
    assert partly.song is None


def test_a_reported_measurement_is_read_back() -> None:
    found = measure(REMEMBERED, HOLDOUT, retained([0.5] * 50, [0] * 50, 1))
    assert None not in (found.own, found.pool, found.gap)
    request = found.request("t-1", 3)
    message = tk.Measurement(
        version=3,
        forget=request.forget,
        holdout=request.holdout,
        yeom=request.yeom,
        song=request.song,
        own=request.own,
        pool=request.pool,
        gap=request.gap,
    )
    assert ModelMeasurement.from_pb(message) == found
    bare = ModelMeasurement(found.forget).request("t-1", 3)
    assert not any(bare.HasField(name) for name in ("holdout", "yeom", "song", "own", "pool", "gap"))
