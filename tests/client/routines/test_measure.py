"""The measurement of a model: sums for the federation, ranks and attacks on the client's data."""

from __future__ import annotations

import numpy as np

from puf_client.routines.evaluate import PerSample
from puf_client.routines.measure import WORST_LOSS, ModelMeasurement, measure, summed
from puf_common.receipts.evidence import BINS
from puf_common.receipts.ranks import RankComparison, class_histogram
from puf_common.v1 import tickets_pb2 as tk


def samples(losses: list[float], confidences: list[float], classes: list[int] | None = None) -> PerSample:
    return PerSample(
        np.array(losses),
        np.array([c > 0.5 for c in confidences], dtype=np.float64),
        np.array(confidences),
        np.array(classes or [0] * len(losses)),
    )


RETAINED = tk.EvaluationSums(samples=4, loss_sum=1.2, score_sum=4.0, confidences=[0] * (BINS - 1) + [4])
REMEMBERED, HOLDOUT = samples([0.1] * 40, [0.97] * 40), samples([1.0] * 40, [0.3] * 40)


def test_only_sums_and_counts_leave_the_client() -> None:
    sums = summed(samples([0.5, 1.5], [0.97, 0.01]))
    assert (sums.samples, sums.loss_sum, sums.score_sum) == (2, 2.0, 1.0)
    assert {i: n for i, n in enumerate(sums.confidences) if n} == {0: 1, 19: 1}
    assert not sums.class_confidences
    by_class = summed(samples([0.5, 1.5], [0.97, 0.01], [2, 0]), by_class=True).class_confidences
    assert {i: n for i, n in enumerate(by_class) if n} == {0: 1, 2 * BINS + 19: 1}
    assert len(by_class) == 3 * BINS


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
    unseen = class_histogram([0.98] * 10 + [0.1] * 10 + [0.9] * 50, [0] * 10 + [1] * 10 + [2] * 50)
    found = measure(forget, holdout, RETAINED, unseen)
    assert found.own == RankComparison(auc=0.25, forget_samples=4, unseen_samples=2)
    assert found.pool is not None
    assert (found.pool.auc, found.pool.forget_samples) == (0.75, 4)
    alone = measure(forget, None, None, unseen)
    assert (alone.own, alone.pool) == (None, found.pool)


def test_without_hold_out_or_retained_sums_there_are_no_attacks() -> None:
    alone = measure(REMEMBERED, None, RETAINED)
    assert (alone.holdout, alone.yeom, alone.song, alone.own, alone.pool) == (None, None, None, None, None)
    unaided = measure(REMEMBERED, HOLDOUT, None)
    assert unaided.holdout is not None
    assert (unaided.yeom, unaided.song) == (None, None)
    assert unaided.own == RankComparison(auc=1.0, forget_samples=40, unseen_samples=40)
    partly = measure(REMEMBERED, HOLDOUT, tk.EvaluationSums(samples=4, loss_sum=1.2, score_sum=4.0))
    assert partly.yeom is not None
    assert partly.song is None


def test_a_reported_measurement_is_read_back() -> None:
    found = measure(REMEMBERED, HOLDOUT, RETAINED, class_histogram([0.5], [0]))
    assert None not in (found.own, found.pool)
    request = found.request("t-1", 3)
    message = tk.Measurement(
        version=3,
        forget=request.forget,
        holdout=request.holdout,
        yeom=request.yeom,
        song=request.song,
        own=request.own,
        pool=request.pool,
    )
    assert ModelMeasurement.from_pb(message) == found
    bare = ModelMeasurement(found.forget).request("t-1", 3)
    assert not any(bare.HasField(name) for name in ("holdout", "yeom", "song", "own", "pool"))
