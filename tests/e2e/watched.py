"""The digits dataset with a record of every training sample that was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from puf_client import ClientData, DataContext
from puf_client.data import load_data


def load(ctx: DataContext) -> ClientData:
    """The digits dataset. The option `record` is the directory of the record."""
    options = dict(ctx.options)
    record = Path(options.pop("record"))
    data = load_data("digits", replace(ctx, options=options))
    # Not the same object as train_plain: a dataset that may augment is read sample by sample in every batch.
    return replace(data, train=Watched(data.train, data.ids, record / f"{ctx.shard}.txt"))


class Watched(Dataset[Any]):
    def __init__(self, samples: Dataset[Any], ids: Sequence[str], record: Path) -> None:
        self._samples = samples
        self._ids = ids
        self._record = record

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Any:
        with self._record.open("a") as out:
            out.write(f"{self._ids[index]}\n")
        return self._samples[index]


def greedy(options: object) -> nn.Module:
    """A model that needs more memory than any machine has as soon as it gets a batch."""
    return Greedy()


class Greedy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * torch.ones(10**15)
