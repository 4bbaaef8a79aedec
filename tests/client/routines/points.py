"""Small data and models for the tests of the routines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from puf_client.routines.context import RoutineContext
from puf_client.routines.train import TrainSettings
from puf_client.tasks import Classification
from puf_common.models import module_tensors, networks
from puf_common.seeds import derive

CPU = torch.device("cpu")
TASK = Classification()


def stream(epoch: int) -> int:
    return derive(1, "train", epoch)


RUN = RoutineContext(CPU, stream)


def settings(lr: float = 0.1, **more: Any) -> TrainSettings:
    return TrainSettings(**{"lr": lr, "batch_size": 6, **more})


def points(samples: int = 20, seed: int = 1) -> TensorDataset:
    x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long())


def relabelled(dataset: TensorDataset) -> TensorDataset:
    x, y = dataset.tensors
    return TensorDataset(x, (y + 1) % 3)


def network(seed: int = 1) -> nn.Module:
    """A network with three classes and dropout."""
    return networks.build_with(
        lambda options: nn.Sequential(nn.Linear(3, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)),
        {},
        seed,
    )


def pixels(samples: int = 6) -> TensorDataset:
    x = torch.randn(samples, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x[:, 0] > 0).long())


def segmenter() -> nn.Module:
    return networks.build_with(lambda options: nn.Conv2d(1, 2, 3, padding=1), {}, 1)


def payload(model: nn.Module) -> bytes:
    return bytes(module_tensors.payload_of(model, module_tensors.manifest_of(model)))


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


class Vector(nn.Module):
    """A model of two numbers; its output is their product with x."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


class Linear(Classification):
    """A loss that is the sum of the output: its gradient in `Vector` is the batch's mean x."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return output.sum(1).mean()


def gradients_of(*each: tuple[float, float]) -> TensorDataset:
    """Samples with these gradients under `Vector` and `Linear`."""
    return TensorDataset(torch.tensor(each), torch.zeros(len(each), dtype=torch.int64))
