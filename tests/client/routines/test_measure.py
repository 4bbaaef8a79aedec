"""The measurement of a model: sums for the federation, and attacks on the client's data."""

from __future__ import annotations

import numpy as np

from puf_client.routines.evaluate import PerSample
from puf_client.routines.measure import WORST_LOSS, ModelMeasurement, measure, summed
from puf_common.receipts.evidence import BINS, Verdict
from puf_common.v1 import tickets_pb2 as tk


def samples(losses: list[float], confidences: list[float]) -> PerSample:
    return PerSample(
        np.array(losses), np.array([c > 0.5 for c in confidences], dtype=np.float64), np.array(confidences)
    )


RETAINED = tk.RetainedSums(
    training=tk.EvaluationSums(samples=4, loss_sum=1.2, score_sum=4.0, confidences=[0] * (BINS - 1) + [4])
)
REMEMBERED, HOLDOUT = samples([0.1] * 40, [0.97] * 40), samples([1.0] * 40, [0.3] * 40)


def test_only_sums_and_counts_leave_the_client() -> None:
    sums = summed(samples([0.5, 1.5], [0.97, 0.01]))
    assert (sums.samples, sums.loss_sum, sums.score_sum) == (2, 2.0, 1.0)
    assert {i: n for i, n in enumerate(sums.confidences) if n} == {0: 1, 19: 1}


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
    assert found.verdict is Verdict.NOT_LIKE_UNSEEN


def test_without_hold_out_or_retained_sums_there_are_no_attacks() -> None:
    alone = measure(REMEMBERED, None, RETAINED)
    assert (alone.holdout, alone.yeom, alone.song, alone.verdict) == (None, None, None, None)
    unaided = measure(REMEMBERED, HOLDOUT, None)
    assert unaided.holdout is not None
    assert unaided.verdict is None
    partly = measure(
        REMEMBERED, HOLDOUT, tk.RetainedSums(training=tk.EvaluationSums(samples=4, loss_sum=1.2, score_sum=4.0))
    )
    assert partly.yeom is not None
    assert partly.song is None


def test_a_reported_measurement_is_read_back() -> None:
    found = measure(REMEMBERED, HOLDOUT, RETAINED)
    request = found.request("t-1", 3)
    message = tk.Measurement(
        version=3,
        forget=request.forget,
        holdout=request.holdout,
        yeom=request.yeom,
        song=request.song,
        gap=request.gap if request.HasField("gap") else None,
    )
    assert ModelMeasurement.from_pb(message) == found
    bare = ModelMeasurement(found.forget).request("t-1", 3)
    assert not any(bare.HasField(name) for name in ("holdout", "yeom", "song"))
