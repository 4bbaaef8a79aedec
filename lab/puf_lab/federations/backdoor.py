"""Data in which the targets' samples carry a backdoor. Every target has a trigger and a wrong label of its own.

A model that was trained with the target gives the target's label to every image with its trigger. A model that was
retrained without the target does not. So the success of the attack shows what a model still has from the target.

It is a data function for clients: `puf_lab.federations.backdoor:data` with the options below beside those of the data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from puf_client.data import ClientData, DataContext, load_data
from puf_client.data import test_set as original_test_set
from puf_client.data.partition import stream
from puf_client.data.samples import batch, count
from puf_common.errors import UsageError

NAME = "puf_lab.federations.backdoor:data"
# Options of this data function. All other options belong to the data behind it.
_OPTIONS = ("backdoor_data", "backdoor_clients", "backdoor_fraction", "backdoor_size", "backdoor_classes")


@dataclass(frozen=True)
class Trigger:
    """A random pattern in the lower right corner of an image, of -1 and 1 times the largest value of the image."""

    pattern: Tensor
    label: int

    @classmethod
    def of(cls, shard: int, size: int, classes: int) -> Trigger:
        random = stream(shard, "backdoor", size)
        return cls(torch.from_numpy(random.choice([-1.0, 1.0], (size, size))).float(), shard % classes)

    def stamped(self, x: Tensor) -> Tensor:
        """The image, or the images of a batch, with the pattern."""
        size = len(self.pattern)
        if x.dim() < 3 or min(x.shape[-2:]) <= size:
            raise UsageError(f"a backdoor of {size} pixels needs larger images, not a tensor of shape {tuple(x.shape)}")
        marked = x.clone()
        marked[..., -size:, -size:] = self.pattern * x.abs().amax(dim=(-3, -2, -1), keepdim=True)
        return marked


class Poisoned(Dataset[Any]):
    """The samples, of which some have the trigger and its label."""

    def __init__(self, samples: Dataset[Any], chosen: frozenset[int], trigger: Trigger) -> None:
        self._samples, self._chosen, self._trigger = samples, chosen, trigger

    def __len__(self) -> int:
        return count(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = (part[0] for part in batch(self._samples, [index]))
        if index not in self._chosen:
            return x, y
        return self._trigger.stamped(x), torch.full_like(y, self._trigger.label)


def data(ctx: DataContext) -> ClientData:
    """The client's data. The share `backdoor_fraction` of a target's training samples is poisoned."""
    plain = load_data(ctx.option("backdoor_data", ""), _behind(ctx))
    if ctx.shard not in {int(word) for word in ctx.option("backdoor_clients", "").split("+") if word}:
        return plain
    size = round(ctx.option("backdoor_fraction", 0.5) * plain.samples)
    order = stream(ctx.seed, "backdoor", "samples", ctx.shard).permutation(plain.samples)
    chosen, trigger = frozenset(int(i) for i in order[:size]), _trigger(ctx, ctx.shard)
    clean = Poisoned(plain.train_plain, chosen, trigger)
    return replace(plain, train_plain=clean, train=Poisoned(plain.train, chosen, trigger) if plain.augments else clean)


def test_set(ctx: DataContext) -> Dataset[Any]:
    """The test set of the data, without a trigger."""
    return original_test_set(ctx.option("backdoor_data", ""), _behind(ctx))


def triggered(ctx: DataContext, targets: tuple[int, ...]) -> Dataset[Any]:
    """Test images of other classes with the triggers of the targets, and the labels that the attack wants."""
    clean = test_set(ctx)
    x, y = batch(clean, range(count(clean)))
    parts = []
    for shard in targets:
        trigger = _trigger(ctx, shard)
        others = y != trigger.label
        parts.append((trigger.stamped(x[others]), torch.full_like(y[others], trigger.label)))
    return torch.utils.data.TensorDataset(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))


def _trigger(ctx: DataContext, shard: int) -> Trigger:
    return Trigger.of(shard, ctx.option("backdoor_size", 3), ctx.option("backdoor_classes", 10))


def _behind(ctx: DataContext) -> DataContext:
    return replace(ctx, options={key: value for key, value in ctx.options.items() if key not in _OPTIONS})
