from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from puf_client.data import DataContext, load_data
from puf_client.data.samples import resident, select
from puf_client.routines.context import Abandoned, RoutineContext
from puf_client.routines.evaluate import evaluate, per_sample
from puf_client.routines.train import TrainSettings, _shuffled, prepare, train
from puf_client.tasks import Classification
from puf_common.errors import PufError, UsageError
from puf_common.models import module_tensors, networks
from puf_common.seeds import derive

CPU = torch.device("cpu")
TASK = Classification()


def _stream(epoch: int) -> int:
    return derive(1, "train", epoch)


def _points(samples: int = 20) -> TensorDataset:
    x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(1) > 0).long())


def _linear(seed: int = 1) -> nn.Module:
    return networks.build_with(lambda options: nn.Linear(3, 2), {}, seed)


def _payload(model: nn.Module) -> bytes:
    return bytes(module_tensors.payload_of(model, module_tensors.manifest_of(model)))


def _trained(dataset: Any = None, **settings: Any) -> bytes:
    model = _linear()
    chosen = TrainSettings(**{"lr": 0.1, "batch_size": 6, **settings})
    train(model, dataset or _points(), TASK, chosen, context=RoutineContext(CPU, _stream))
    return _payload(model)


class Seen(Dataset[Any]):
    """A dataset that stores the order of its accesses and returns the results of `make`."""

    def __init__(self, samples: int, make: Callable[[int], Tensor] = lambda i: torch.full((3,), float(i))) -> None:
        self.samples = samples
        self.make = make
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.asked.append(index)
        return self.make(index), index % 2


def test_training_learns() -> None:
    model, points = _linear(), _points(200)
    before = evaluate(model, points, TASK, device=CPU)
    result = train(model, points, TASK, TrainSettings(lr=0.5, epochs=5), context=RoutineContext(CPU, _stream))
    after = evaluate(model, points, TASK, device=CPU)
    assert result.samples_processed == 1000
    assert before.loss_sum / 200 > result.loss > after.loss_sum / 200
    assert after.score_sum / 200 > 0.9


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_optimizers_equal_those_of_torch(optimizer: str, momentum: float, weight_decay: float) -> None:
    mine = _trained(optimizer=optimizer, momentum=momentum, weight_decay=weight_decay, epochs=2)
    model = _linear()
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    extra = {"momentum": momentum} if optimizer == "sgd" else {}
    theirs = kind(model.parameters(), lr=0.1, weight_decay=weight_decay, **extra)
    x, y = _points().tensors
    for chosen in _shuffled(20, 6, 8, RoutineContext(CPU, _stream)):
        theirs.zero_grad()
        TASK.loss(model(x[chosen]), y[chosen]).backward()  # type: ignore[no-untyped-call]
        theirs.step()
    assert mine == _payload(model)


def test_weight_decay_of_plain_sgd_is_decoupled() -> None:
    model = _linear()
    x, y = _points().tensors
    TASK.loss(model(x), y).backward()  # type: ignore[no-untyped-call]
    expected = [p.detach() * (1 - 0.1 * 0.5) - 0.1 * p.grad for p in model.parameters() if p.grad is not None]
    train(
        model,
        _points(),
        TASK,
        TrainSettings(lr=0.1, weight_decay=0.5, batch_size=20),
        context=RoutineContext(CPU, _stream),
    )
    for parameter, value in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter, value, atol=1e-6)


def test_frozen_and_unused_parameters_do_not_change() -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2), "frozen": nn.Linear(2, 2)})
    model["frozen"].requires_grad_(False)
    model.forward = lambda x: model["frozen"](model["used"](x))
    before = {name: p.clone() for name, p in model.named_parameters()}
    chosen = TrainSettings(lr=0.1, momentum=0.9, weight_decay=0.1)
    train(model, _points(), TASK, chosen, context=RoutineContext(CPU, _stream))
    changed = {name.partition(".")[0] for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"used"}


def test_data_stacked_or_fetched_gives_the_same_bits() -> None:
    points = _points()
    fetched = select(resident(points, CPU), range(20))
    assert _trained(points) == _trained(fetched) == _trained(torch.utils.data.Subset(points, range(20)))


def test_the_order_depends_only_on_the_seed_of_the_epoch() -> None:
    first, again = Seen(10), Seen(10)
    for dataset in (first, again):
        torch.rand(3)
        _trained(dataset, batch_size=4, epochs=2)
    assert first.asked == again.asked
    assert sorted(first.asked[:10]) == sorted(first.asked[10:]) == list(range(10))
    assert first.asked[:10] != first.asked[10:]


def test_augmentation_is_repeatable_with_every_random_generator() -> None:
    def chance(index: int) -> Tensor:
        return torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()])

    runs = []
    for _ in range(2):
        torch.rand(1), np.random.rand(), random.random()
        runs.append(_trained(Seen(10, chance)))
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("epochs", "batches"),
    [(1, 10), (2.5, 25), (0.3, 3), (2.3, 23), (0.7, 7), (0.39, 3), (0.05, 1), (1.05, 10), (1 / 3, 3)],
)
def test_fractional_epochs_take_the_first_batches(epochs: float, batches: int) -> None:
    reported: list[tuple[int, int]] = []
    dataset, whole = Seen(39), Seen(39)
    chosen = TrainSettings(lr=0.001, batch_size=4, epochs=epochs)
    result = train(
        _linear(),
        dataset,
        TASK,
        chosen,
        context=RoutineContext(CPU, _stream, lambda done, of: reported.append((done, of))),
    )
    assert reported == [(done, batches) for done in range(1, batches + 1)]
    assert result.samples_processed == len(dataset.asked)
    train(_linear(), whole, TASK, TrainSettings(lr=0.001, batch_size=4, epochs=3), context=RoutineContext(CPU, _stream))
    assert whole.asked[: len(dataset.asked)] == dataset.asked


@settings(max_examples=50, deadline=None)
@given(samples=st.integers(1, 50), batch_size=st.integers(1, 60), epochs=st.integers(1, 3))
def test_an_epoch_has_every_sample_once(samples: int, batch_size: int, epochs: int) -> None:
    per_epoch = -(-samples // batch_size)
    batches = list(_shuffled(samples, batch_size, per_epoch * epochs, RoutineContext(CPU, _stream)))
    assert len(batches) == per_epoch * epochs
    for epoch in range(epochs):
        seen = [i for chosen in batches[epoch * per_epoch : (epoch + 1) * per_epoch] for i in chosen]
        assert sorted(seen) == list(range(samples))


def test_a_caller_can_stop_between_batches() -> None:
    answers = iter([False, False, True])
    dataset = Seen(20)
    with pytest.raises(Abandoned):
        train(
            _linear(), dataset, TASK, TrainSettings(lr=0.1, batch_size=5),
            context=RoutineContext(CPU, _stream, should_stop=lambda: next(answers)),
        )  # fmt: skip
    assert len(dataset.asked) == 10
    with pytest.raises(Abandoned):
        per_sample(_linear(), _points(), TASK, device=CPU, should_stop=lambda: True)


def test_a_loss_that_is_not_finite_says_what_to_do() -> None:
    bad = TensorDataset(torch.full((4, 3), float("nan")), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(PufError, match=r"loss became nan in batch 1 of 1: lower the learning rate \(now 0.1\)"):
        _trained(bad)


def test_out_of_memory_says_what_to_do() -> None:
    class Greedy(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            raise torch.OutOfMemoryError("CUDA out of memory")

    says = "cpu ran out of memory while {}: .*smaller batch size"
    with pytest.raises(PufError, match=says.format("training with batches of 32")):
        train(Greedy(3, 2), _points(), TASK, TrainSettings(lr=0.1), context=RoutineContext(CPU, _stream))
    with pytest.raises(PufError, match=says.format("evaluating one sample")):
        evaluate(Greedy(3, 2), _points(), TASK, device=CPU)


def test_evaluation_takes_batches_that_fit_into_memory() -> None:
    tried: list[int] = []

    class Small(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            tried.append(len(input))
            if len(input) > 5:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(input)

    torch.manual_seed(1)
    model, points = Small(3, 2), _points()
    plain = nn.Linear(3, 2)
    plain.load_state_dict(model.state_dict())
    found = per_sample(model, points, TASK, device=CPU, batch_size=20)
    np.testing.assert_allclose(found.losses, per_sample(plain, points, TASK, device=CPU).losses, rtol=1e-6)
    assert tried[:3] == [20, 10, 5]
    assert max(tried[3:]) == 5, "later batches have the size that fitted"


def test_training_without_samples_is_an_error_and_evaluation_is_empty() -> None:
    nothing = select(_points(), [])
    with pytest.raises(UsageError, match="no sample to train on"):
        train(_linear(), nothing, TASK, TrainSettings(lr=0.1), context=RoutineContext(CPU, _stream))
    sums = evaluate(_linear(), nothing, TASK, device=CPU)
    assert (sums.samples, sums.loss_sum, sums.score_sum) == (0, 0, 0)
    assert per_sample(_linear(), nothing, TASK, device=CPU).losses.shape == (0,)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"optimizer": "lion"}, "optimizer 'lion' must be one of sgd, adam, adamw"),
        ({"lr": 0}, "learning rate and epochs must be above 0"),
        ({"lr": float("nan")}, "learning rate"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch size and threads"),
        ({"threads": 0}, "threads"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        TrainSettings(**{"lr": 0.1, **changes})


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_sums_the_values_of_all_samples_and_changes_nothing(training: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train(training)
    before = _payload(model)
    points = _points(23)
    sums = evaluate(model, points, TASK, device=CPU)
    each = per_sample(model, points, TASK, device=CPU, batch_size=7)
    assert sums.samples == 23 == len(each.losses) == len(each.scores) == len(each.confidences)
    assert sums.loss_sum == pytest.approx(each.losses.sum())
    assert sums.score_sum == each.scores.sum()
    assert np.allclose(each.confidences, np.exp(-each.losses))
    assert model.training is training
    assert _payload(model) == before


def test_prepare_makes_torch_deterministic() -> None:
    prepare(CPU, 1)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 1


_PROGRAM = """
import hashlib, sys, torch
from puf_client.routines.context import RoutineContext
from puf_client.data import DataContext, load_data
from puf_client.routines.train import TrainSettings, train
from puf_client.tasks import Classification
from puf_common.models import module_tensors, networks
from puf_common.seeds import derive

def digest():
    data = load_data("digits", DataContext(2, 10, "iid", 5, None, {"noise": "1.0", "per_client": "60"}))
    model = networks.build("digits-cnn", {}, 5)
    settings = TrainSettings(lr=0.1, momentum=0.5, batch_size=10, epochs=2)
    train(model, data.train, Classification(), settings, context=RoutineContext(torch.device("cpu"), lambda e: derive(5, e)))
    return hashlib.sha256(module_tensors.payload_of(model, module_tensors.manifest_of(model))).hexdigest()

if __name__ == "__main__":
    print(digest(), bool({"torch._dynamo", "sklearn", "torchvision"} & set(sys.modules)))
"""


def test_equal_seeds_give_equal_bits_in_every_process() -> None:
    """This process and one with another hash seed. A client on digits also imports no unnecessary libraries."""
    other = os.environ | {"PYTHONHASHSEED": "17"}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=other, capture_output=True, text=True, timeout=120)
    names: dict[str, Any] = {"__name__": "here"}
    exec(_PROGRAM, names)
    assert done.stdout.split() == [names["digest"](), "False"], done.stderr


def test_digits_are_learnt_in_seconds() -> None:
    data = load_data("digits", DataContext())
    model = networks.build("digits-cnn", {}, 1)
    settings = TrainSettings(lr=0.1, batch_size=10, epochs=2)
    train(model, resident(data.train, CPU), TASK, settings, context=RoutineContext(CPU, _stream))
    assert data.holdout is not None
    sums = evaluate(model, data.holdout, TASK, device=CPU)
    assert sums.score_sum / sums.samples > 0.9
