"""What a model does with samples: in sums, or one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puf_client.data.samples import Samples, batch, count, memory_told, stacked_if_tensors
from puf_client.routines.train import Abandoned
from puf_client.tasks import Task

__all__ = ["EvaluationSums", "PerSample", "evaluate", "outputs", "per_sample"]


@dataclass(frozen=True)
class EvaluationSums:
    """Sums rather than means: those of several clients add up."""

    samples: int
    loss_sum: float
    score_sum: float


@dataclass(frozen=True)
class PerSample:
    """What the model does with every sample, in the order of the dataset."""

    losses: NDArray[np.float64]
    scores: NDArray[np.float64]
    confidences: NDArray[np.float64]


def evaluate(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    *,
    device: torch.device,
    batch_size: int = 256,
    should_stop: Callable[[], bool] | None = None,
) -> EvaluationSums:
    """Loss and score, summed over the samples."""
    losses, scores = 0.0, 0.0
    for output, y in outputs(model, dataset, device, batch_size, should_stop):
        losses += task.sample_losses(output, y).double().sum().item()
        scores += task.sample_scores(output, y).double().sum().item()
    return EvaluationSums(count(dataset), losses, scores)


def per_sample(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    *,
    device: torch.device,
    batch_size: int = 256,
    should_stop: Callable[[], bool] | None = None,
) -> PerSample:
    """Loss, score and confidence of every sample, for membership attacks."""
    columns: tuple[list[NDArray[np.float64]], ...] = ([], [], [])
    for output, y in outputs(model, dataset, device, batch_size, should_stop):
        for column, measure in zip(columns, (task.sample_losses, task.sample_scores, task.confidences), strict=True):
            column.append(measure(output, y).double().cpu().numpy())
    losses, scores, confidences = (np.concatenate([np.empty(0), *column]) for column in columns)
    return PerSample(losses, scores, confidences)


def outputs(
    model: nn.Module, dataset: Samples, device: torch.device, batch_size: int, should_stop: Callable[[], bool] | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Output and target batch by batch, with the model in evaluation mode meanwhile."""
    dataset = stacked_if_tensors(dataset, device)
    training = model.training
    model.to(device).eval()
    try:
        with memory_told(device, f"evaluating with batches of {batch_size}"):
            for begin in range(0, count(dataset), batch_size):
                if should_stop is not None and should_stop():
                    raise Abandoned
                x, y = batch(dataset, range(begin, min(begin + batch_size, count(dataset))), device)
                with torch.no_grad():
                    output = model(x)
                yield output, y
    finally:
        model.train(training)
