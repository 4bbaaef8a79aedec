"""What a job gives to a training loop, and what it refuses before anything is sent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from puf_client import ClientData, Job, connect
from puf_client.api.session import ROUTINES
from puf_client.session.assignment import Assignment
from puf_client.session.update import LocalUpdate
from puf_client.tasks import Classification
from puf_client.worker.devices import choose
from puf_client.worker.trainer import Trainer
from puf_common.errors import InvalidUpdate, UsageError
from puf_common.models.module_tensors import manifest_of, payload_of
from puf_common.v1 import federation_pb2 as pb

SAMPLES = 20


class Case:
    """A job on some samples of a client, without a server. `sent` are the updates that it delivered."""

    def __init__(self, chosen: list[int], epochs: float = 1.0, **recipe: object) -> None:
        torch.manual_seed(3)
        # x is the position of the sample, so that a test sees which samples a batch has.
        x = torch.arange(SAMPLES, dtype=torch.float32)[:, None].repeat(1, 4)
        data = ClientData(TensorDataset(x, torch.arange(SAMPLES) % 3), ids=[f"s{i}" for i in range(SAMPLES)])
        self.model: nn.Module = nn.Linear(4, 3)
        manifest = manifest_of(self.model)
        made = pb.Recipe(**{"batch_size": 8, "seed": 1, "optimizer": "sgd", **recipe})  # type: ignore[arg-type]
        trainer = Trainer(
            data, self.model, manifest, Classification(), choose("cpu"), made, "", lambda seed: self.model
        )
        self.sent: list[LocalUpdate] = []
        self.declined: list[str] = []
        self.work = Assignment(
            message=pb.TrainWork(
                key=pb.WorkKey(round=3, part=pb.PART_FORGET), epochs=epochs, lr=0.1, samples=len(chosen)
            ),
            client="clinic-7",
            recipe=made,
            manifest=manifest,
            payload=memoryview(payload_of(self.model, manifest)).toreadonly(),
            announced=SAMPLES,
            deliver=lambda work, update: not self.sent.append(update),  # type: ignore[func-returns-value]
            refuse=lambda work, reason: self.declined.append(reason),
            indices=np.array(chosen),
        )
        indices = self.work.indices
        assert indices is not None
        self.job = Job(self.work, trainer.inputs(self.work, indices), trainer.context(self.work))

    def train(self) -> list[int]:
        """Runs the documented loop. Returns the positions of the samples that it saw."""
        optimizer, seen = self.job.optimizer(), []
        for x, y in self.job.batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seen += x[:, 0].int().tolist()
        return seen


def test_batches_have_the_samples_of_the_job_and_no_others() -> None:
    case = Case([2, 5, 7, 11, 13, 17, 19, 3, 1, 0], epochs=2.0)
    assert sorted(case.train()) == sorted([2, 5, 7, 11, 13, 17, 19, 3, 1, 0] * 2)
    assert case.job.submit()
    [update] = case.sent
    assert (update.samples, update.samples_processed) == (10, 20)
    assert case.job.ended


@pytest.mark.parametrize(("epochs", "seen"), [(0.5, 8), (0.01, 8), (1.0, 20), (2.4, 20 + 20 + 8)])
def test_epochs_can_be_fractional_and_seeds_repeat(epochs: float, seen: int) -> None:
    first, again = (Case(list(range(SAMPLES)), epochs) for _ in range(2))
    assert len(first.train()) == seen
    assert again.train()
    assert first.job.submit()
    assert again.job.submit()
    assert bytes(first.sent[0].payload) == bytes(again.sent[0].payload)


@pytest.mark.parametrize(
    ("kind", "expected"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_the_optimizer_is_that_of_the_recipe(kind: str, expected: type[torch.optim.Optimizer]) -> None:
    optimizer = Case([1, 2], optimizer=kind, weight_decay=0.25, momentum=0.5).job.optimizer()
    assert type(optimizer) is expected
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (pytest.approx(0.1), 0.25)
    assert optimizer.defaults.get("momentum", 0.5) == 0.5


def _stop_early(case: Case) -> None:
    next(case.job.batches())
    case.job.submit()


@pytest.mark.parametrize(
    ("loop", "says"),
    [
        (lambda case: case.job.submit(), "state which samples"),
        (lambda case: case.job.submit(indices=[1, 2, 3]), "states 3: 6 of the assigned are missing, 0 are others"),
        (
            lambda case: case.job.submit(indices=range(SAMPLES)),
            "states 20: 0 of the assigned are missing, 11 are others",
        ),
        (
            lambda case: case.job.submit(indices=[*range(9), 8]),
            "states 10: 0 .* missing, 0 are others; .* state each once",
        ),
        (lambda case: case.job.submit(indices=["s1"]), "9 of the assigned are missing, 1 are others; .* the positions"),
        (_stop_early, "took 1 of 2 batches"),
    ],
    ids=["unstated", "fewer", "all", "twice", "names", "early"],
)
def test_a_loop_that_used_other_samples_is_refused_before_anything_is_sent(
    loop: Callable[[Case], None], says: str
) -> None:
    case = Case(list(range(9)))
    with pytest.raises(InvalidUpdate, match=says):
        loop(case)
    assert not case.sent
    assert not case.job.ended


def test_a_loop_with_its_own_batches_states_its_samples() -> None:
    case = Case([4, 5, 6])
    assert case.job.submit(indices=case.job.indices)
    assert case.sent[0].samples == 3


def test_an_abandoned_job_ends_its_batches_and_sends_nothing() -> None:
    case = Case(list(range(SAMPLES)))
    seen = 0
    for _ in case.job.batches():
        seen += 1
        case.work.abandoned.set()
    assert seen == 1
    assert not case.job.submit()
    assert not case.sent


def test_misuse_is_explained() -> None:
    case = Case([1, 2])
    with pytest.raises(UsageError, match="takes no model"):
        case.job.submit(case.model)  # type: ignore[arg-type]
    case.train()
    with pytest.raises(UsageError, match="call it once"):
        next(case.job.batches())
    case.job.submit()
    with pytest.raises(UsageError, match="already submitted"):
        case.job.submit()
    case.job.decline("late")
    assert not case.declined


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"samples": 600}, "no longer takes samples: pass data=ClientData"),
        ({"parts": ("main",)}, "no longer takes parts: leave it out"),
        ({"holdout_samples": 3}, "the session counts data.holdout"),
        ({"device": "cpu"}, r"no longer takes device: pass options=ConnectOptions\(device=...\)"),
        ({"token": "secret"}, r"no longer takes token: pass options=ConnectOptions\(token_file=...\)"),
        ({"colour": "red"}, "no longer takes colour: leave it out"),
        ({"data": ["a", "b"]}, "needs data=ClientData"),
        ({"data": ClientData(TensorDataset(torch.zeros(1)), ids=["a"])}, "needs model="),
    ],
)
def test_old_calls_say_what_to_change(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        connect("127.0.0.1:1", name="clinic-7", **arguments)  # type: ignore[arg-type]


def test_a_loop_declares_only_what_ordinary_descent_can_do() -> None:
    assert set(ROUTINES) == {"train", "dose"}
