"""The example of a user's code, loaded by name from its directory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from puf_client import data
from puf_client.data import DataContext
from puf_client.routines.context import RoutineContext
from puf_client.routines.evaluate import evaluate
from puf_client.routines.train import TrainSettings, train
from puf_client.tasks import task_named
from puf_common.config import plugins
from puf_common.models import module_tensors, networks
from puf_common.seeds import derive
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _in_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2] / "examples" / "segmentation")
    monkeypatch.setattr(sys, "path", list(sys.path))


def _folded(manifest: Manifest, base: bytearray, updates: list[bytearray]) -> bytearray:
    """One round of FedAvg over clients of equal size."""
    result = bytearray(base)
    sent = [manifest.views(update, UPDATE) for update in updates]
    for slot in manifest.ranges(MODEL):
        target = np.frombuffer(result, slot.dtype, slot.spec.size, slot.offset).reshape(slot.spec.shape)
        values = np.stack([views[slot.spec.name] for views in sent])
        if slot.spec.role == "parameter":
            target += values.mean(0)
        else:
            target[...] = values.mean(0) if slot.spec.floating else values.max(0)
    return result


def test_clinics_differ_and_are_repeatable() -> None:
    first, again, other = (data.load_data("blobs:load", DataContext(shard, 4)) for shard in (0, 0, 1))
    assert first.ids == again.ids
    assert torch.equal(first.train[0][0], again.train[0][0])
    assert not set(first.ids) & set(other.ids)
    assert first.groups is not None
    assert [g for g in first.groups if g.endswith("patient-003")] == ["clinic-0/patient-003"] * 4
    assert (first.samples, first.holdout_samples) == (36, 12)
    assert plugins.plugin_version(plugins.load("blobs:load")) == "1.0"


def test_a_few_rounds_find_the_blobs() -> None:
    task = task_named("blobs:FindBlobs")
    clinics = [data.load_data("blobs:load", DataContext(shard, 4)) for shard in range(4)]
    model = networks.build_any("blobs:build_model", {}, 1)
    manifest = module_tensors.manifest_of(model)
    assert 1_000 < manifest.parameters < 10_000
    assert {t.name for t in manifest.tensors if t.role == "buffer"} >= {"up.1.running_mean", "up.1.num_batches_tracked"}
    test = data.test_set("blobs:load", DataContext())
    everything = torch.ones(len(test), 1, 24, 24)  # type: ignore[arg-type]
    trivial = task.sample_scores(everything, torch.stack([y for _, y in test])).mean().item()  # type: ignore[attr-defined]
    settings = TrainSettings(lr=0.1, momentum=0.9, batch_size=8)
    base = module_tensors.payload_of(model, manifest)
    for number in range(1, 7):
        updates = []
        for shard, clinic in enumerate(clinics):
            module_tensors.load_payload(model, manifest, base)
            stream = [derive(1, number, shard, epoch) for epoch in range(1)].__getitem__
            train(model, clinic.train, task, settings, context=RoutineContext(CPU, stream))
            updates.append(module_tensors.update_of(model, manifest, base))
        base = _folded(manifest, base, updates)
    module_tensors.load_payload(model, manifest, base)
    sums = evaluate(model, test, task, device=CPU)
    assert trivial < 0.3
    assert sums.score_sum / sums.samples > 0.7
    assert manifest.views(base, MODEL)["up.1.num_batches_tracked"] == 6 * 5


def test_the_task_measures_each_image_separately() -> None:
    task = task_named("blobs:FindBlobs")
    target = torch.tensor([[[1, 0], [0, 0]], [[0, 0], [0, 0]]])
    right, wrong = (
        torch.where(target.bool(), sign, -sign)[:, None].float() for sign in (torch.tensor(5.0), torch.tensor(-5.0))
    )
    assert task.sample_scores(right, target).tolist() == [1.0, 1.0]
    assert task.sample_scores(wrong, target).tolist() == [0.0, 0.0]
    assert (task.sample_losses(right, target) < task.sample_losses(wrong, target)).all()
    assert (task.confidences(right, target) > 0.99).all()
    assert torch.allclose(task.loss(right, target), task.sample_losses(right, target).mean())
