"""Options of the recipe change how a model is computed, not the layout of the update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from puf_client.data.samples import Resident
from puf_client.routines.context import RoutineContext
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
