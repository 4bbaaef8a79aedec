"""Options of the recipe change how a model is computed, not the layout of the update."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from puf_client.data.samples import Resident
from puf_client.routines import forward
from puf_client.routines.context import RoutineContext
from puf_client.routines.evaluate import per_sample
from puf_client.routines.forward import Acceleration
from puf_client.routines.registry import ROUTINES, RoutineInputs, run_routine
from puf_client.routines.train import TrainSettings, train
from puf_client.tasks import task_named
from puf_common.models.module_tensors import manifest_of, payload_of, update_of
from puf_common.models.networks import build
from puf_common.tensors.manifest import UPDATE

CPU = torch.device("cpu")
SETTINGS = TrainSettings(lr=0.05, batch_size=8)


def samples() -> Resident:
    chance = torch.Generator().manual_seed(1)
    return Resident(torch.randn(16, 3, 12, 12, generator=chance), torch.arange(16) % 10)


def trained(settings: TrainSettings) -> tuple[float, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    model = build("resnet8-gn", {}, 1)
    manifest, base = manifest_of(model), payload_of(model, manifest_of(model))
    result = train(model, samples(), task_named("classification"), settings, context=RoutineContext(CPU, lambda e: e))
    assert manifest_of(model) == manifest
    update = update_of(model, manifest, base)
    assert len(update) == manifest.nbytes(UPDATE)
    return result.loss, np.frombuffer(update, "<f4")


@pytest.mark.parametrize(
    ("settings", "close"), [(replace(SETTINGS, channels_last=True), 1e-3), (replace(SETTINGS, amp=True), 0.2)]
)
def test_each_option_gives_nearly_the_same_update(settings: TrainSettings, close: float) -> None:
    loss, plain = trained(SETTINGS)
    other_loss, other = trained(settings)
    assert np.linalg.norm(other - plain) <= close * np.linalg.norm(plain)
    assert other_loss == pytest.approx(loss, rel=close)
    # The option has an effect, and the same effect every time.
    assert not np.array_equal(other, plain)
    assert np.array_equal(other, trained(settings)[1])


def test_with_amp_the_network_computes_in_bfloat16() -> None:
    seen: list[torch.dtype] = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            seen.append(out.dtype)
            return out

    data = Resident(torch.randn(8, 4), torch.arange(8) % 3)
    model = Watched(4, 3)
    task = task_named("classification")
    train(model, data, task, replace(SETTINGS, amp=True), context=RoutineContext(CPU, lambda e: e))
    assert seen == [torch.bfloat16]
    assert model.weight.dtype is torch.float32
    train(model, data, task, SETTINGS, context=RoutineContext(CPU, lambda e: e))
    assert seen == [torch.bfloat16, torch.float32]


class Net(nn.Module):
    """Notes the number type of its features, and whether images came with channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)
        self.types: set[torch.dtype] = set()
        self.last: set[bool] = set()

    def forward(self, x: Tensor) -> Tensor:
        found = self.conv(x)
        self.types.add(found.dtype)
        self.last.add(self.conv.weight.is_contiguous(memory_format=torch.channels_last))
        out: Tensor = self.head(found.mean((2, 3)))
        return out


REQUIRED = {
    "ascent": {"share": 0.5},
    "dose": {"min_kappa": 0.125, "max_kappa": 8.0, "growth": 1.25, "margin": 0.15, "largest_fall": 0.2},
}


def inputs_of(model: Net, name: str, settings: TrainSettings) -> RoutineInputs:
    data = Resident(torch.randn(12, 3, 6, 6), torch.arange(12) % 3)
    return RoutineInputs(
        model=model,
        samples=data,
        task=task_named("classification"),
        settings=settings,
        options=REQUIRED.get(name, {}),
        outputs=(),
        forget=None,
        second=Net(),
        fresh=lambda seed: Net(),
        plain=data,
        holdout=Resident(torch.randn(60, 3, 6, 6), torch.arange(60) % 3),
    )


@pytest.mark.parametrize("name", ROUTINES)
@pytest.mark.parametrize("used", [True, False])
def test_every_routine_computes_as_the_recipe_says(name: str, used: bool) -> None:
    torch.manual_seed(1)
    model = Net()
    inputs = inputs_of(model, name, replace(SETTINGS, amp=used, channels_last=used))
    run_routine(name, inputs, RoutineContext(CPU, lambda epoch: epoch))
    assert model.types == {torch.bfloat16 if used else torch.float32}
    assert model.last == {used}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", ROUTINES)
def test_every_routine_compiles_if_the_recipe_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's compiler takes a minute: here a stand-in for torch.compile counts the calls of what it returned."""
    calls: list[str] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            calls.append(name)
            return function(*values)

        return call

    monkeypatch.setattr(torch, "compile", counted)
    torch.manual_seed(1)
    run_routine(name, inputs_of(Net(), name, replace(SETTINGS, compile=True)), RoutineContext(CPU, lambda epoch: epoch))
    # FedAU reads the features with a hook, which a compiled model does not call.
    assert bool(calls) == (name != "aux_head")


def test_evaluation_computes_as_the_recipe_says() -> None:
    torch.manual_seed(1)
    model = Net()
    data = Resident(torch.randn(12, 3, 6, 6), torch.arange(12) % 3)
    plain = per_sample(model, data, task_named("classification"), device=CPU)
    fast = per_sample(
        model, data, task_named("classification"), device=CPU, how=Acceleration(amp=True, channels_last=True)
    )
    assert model.types == {torch.float32, torch.bfloat16}
    assert model.last == {False, True}
    np.testing.assert_allclose(fast.losses, plain.losses, rtol=0.02)
    assert not np.array_equal(fast.losses, plain.losses)


def test_a_compiled_model_is_used_in_training_and_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's compiler takes a minute: here a stand-in for torch.compile counts the calls of what it returned."""
    calls: list[int] = []

    def counted(model: nn.Module) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            calls.append(len(x))
            out: Tensor = model(x)
            return out

        return call

    monkeypatch.setattr(torch, "compile", counted)
    model, data = Net(), Resident(torch.randn(12, 3, 6, 6), torch.arange(12) % 3)
    task, settings = task_named("classification"), replace(SETTINGS, compile=True)
    train(model, data, task, settings, context=RoutineContext(CPU, lambda e: e))
    per_sample(model, data, task, device=CPU, how=settings)
    assert calls == [8, 4, 12]


@pytest.mark.parametrize("name", ["quit", "guide", "distill"])
def test_a_teacher_is_not_compiled_and_few_compiled_models_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled function keeps its model alive. A teacher lives for one assignment only."""
    compiled: list[nn.Module] = []

    def kept(model: nn.Module) -> Callable[[Tensor], Tensor]:
        compiled.append(model)
        return lambda x: model(x)

    monkeypatch.setattr(torch, "compile", kept)
    monkeypatch.setattr(forward, "_COMPILED", table := OrderedDict[nn.Module, Any]())
    models = [Net() for _ in range(4)]
    for model in (*models, models[-1]):
        inputs = inputs_of(model, name, replace(SETTINGS, compile=True))
        run_routine(name, inputs, RoutineContext(CPU, lambda epoch: epoch))
    assert compiled == models, "each once, and no teacher"
    assert list(table) == models[-2:]
