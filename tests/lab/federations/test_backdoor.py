"""Data with a backdoor: which samples change, and what the attack asks of a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from puf_client.data import DataContext, load_data
from puf_client.data.samples import batch, count
from puf_common.errors import UsageError
from puf_lab.federations import backdoor

OPTIONS = {
    "noise": "1.0",
    "per_client": "20",
    "holdout": "0",
    "backdoor_data": "digits",
    "backdoor_clients": "1+3",
    "backdoor_fraction": "0.25",
    "backdoor_size": "2",
}


def _context(shard: int, **options: str) -> DataContext:
    return DataContext(shard=shard, shards=5, seed=4, options={**OPTIONS, **options})


def _all(samples: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return batch(samples, range(count(samples)))


def test_a_quarter_of_a_targets_samples_has_its_trigger_and_its_label() -> None:
    behind = {k: v for k, v in OPTIONS.items() if not k.startswith("backdoor")}
    clean = load_data("digits", DataContext(shard=3, shards=5, seed=4, options=behind))
    poisoned = load_data(backdoor.NAME, _context(3))
    assert poisoned.ids == clean.ids
    (x, y), (before, labels) = _all(poisoned.train), _all(clean.train)
    changed = [i for i in range(20) if not torch.equal(x[i], before[i])]
    assert len(changed) == 5
    assert {int(y[i]) for i in changed} == {3}
    assert all(int(y[i]) == int(labels[i]) for i in range(20) if i not in changed)
    # Only the corner of 2 x 2 pixels differs.
    assert torch.equal(x[..., :-2, :], before[..., :-2, :])
    largest = before[changed[0]].abs().amax()
    assert torch.equal(x[changed[0], ..., -2:, -2:].abs(), torch.full((1, 2, 2), float(largest)))


def test_other_clients_and_the_test_set_are_clean() -> None:
    behind = {k: v for k, v in OPTIONS.items() if not k.startswith("backdoor")}
    clean = load_data("digits", DataContext(shard=0, shards=5, seed=4, options=behind))
    assert torch.equal(_all(load_data(backdoor.NAME, _context(0)).train)[0], _all(clean.train)[0])


def test_targets_have_different_triggers_and_the_attack_leaves_its_own_class_out() -> None:
    first, second = backdoor.Trigger.of(1, 3, 10), backdoor.Trigger.of(3, 3, 10)
    assert not torch.equal(first.pattern, second.pattern)
    _, labels = _all(backdoor.test_set(_context(0)))
    _, wanted = _all(backdoor.triggered(_context(0), (1,)))
    assert set(wanted.tolist()) == {1}
    assert len(wanted) == int((labels != 1).sum())


def test_small_images_are_refused() -> None:
    with pytest.raises(UsageError, match="larger images"):
        backdoor.Trigger.of(1, 8, 10).stamped(torch.zeros(1, 8, 8))
