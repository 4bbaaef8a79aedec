"""Figures for trackers are of several clients together. Nothing is of one client, or of the data to forget."""

from __future__ import annotations

import pytest

from puf_common.errors import UsageError
from puf_server.core.state.measurements import Sums
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.rounds import RoundKind, RoundRecord
from puf_server.tracking.figures import of_model, of_round
from puf_server.tracking.trackers import tracker_named


def record(kind: RoundKind, contributions: int) -> RoundRecord:
    return RoundRecord(
        number=7, attempt=1, kind=kind, base=6, version=7, expected=contributions, contributions=contributions,
        opened_at=10.0, committed_at=12.5, nbytes_up=100, nbytes_down=200, samples_processed=60, train_loss=0.25,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "contributions", "told"),
    [
        (RoundKind.TRAIN, 3, True),
        (RoundKind.RECOVER, 2, True),
        (RoundKind.TRAIN, 1, False),
        (RoundKind.UNLEARN, 1, False),
        (RoundKind.UNLEARN, 3, False),
    ],
)
def test_the_loss_of_one_client_or_of_an_unlearning_round_is_not_sent(
    kind: RoundKind, contributions: int, told: bool
) -> None:
    found = of_round(record(kind, contributions))
    assert (found.round, found.values["round/seconds"]) == (7, 2.5)
    assert ("train/loss" in found.values) == told
    assert ("train/samples" in found.values) == told


@pytest.mark.parametrize(
    ("status", "clients", "told"),
    [
        (ModelStatus.READY, 2, True),
        (ModelStatus.UNLEARNED, 2, True),
        (ModelStatus.READY, 1, False),
        (ModelStatus.WITHDRAWN, 3, False),
        (ModelStatus.DELETED, 3, False),
        (ModelStatus.AUXILIARY, 3, False),
    ],
)
def test_scores_of_withdrawn_models_are_not_sent(status: ModelStatus, clients: int, told: bool) -> None:
    score = Sums(samples=10, loss_sum=5.0, score_sum=8.0)
    model = ModelVersion(
        version=4, round=4, digest="d", nbytes=1, status=status, created_at=1.0, score=score, score_clients=clients
    )
    found = of_model(model)
    assert (found is not None) == told
    if found is not None:
        assert found.values == {"holdout/score": 0.8, "holdout/loss": 0.5, "holdout/samples": 10.0}


def test_a_tracker_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("puf_server.tracking.trackers.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs wandb: pip install 'puf-fl\[wandb\]'"):
        tracker_named("wandb:project")


@pytest.mark.parametrize("spec", ["tensorboard", "tensorboard:", "csv:here", ""])
def test_an_unknown_tracker_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="tensorboard:DIR, mlflow:URI or wandb:PROJECT"):
        tracker_named(spec)
