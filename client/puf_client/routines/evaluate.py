"""Losses, scores and confidences of a model on samples: as sums, or per sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puf_client.data.samples import OutOfMemory, Samples, batch, count, explain_out_of_memory, stacked_if_tensors
from puf_client.routines.context import Abandoned
from puf_client.routines.forward import PLAIN, Acceleration, forward_of
from puf_client.routines.per_sample import PerSample
from puf_client.tasks import Task
from puf_common.v1.tickets_pb2 import EvaluationSums

# Largest size of a batch's inputs. 256 images of 3 x 32 x 32 have 3 MB; 16 of 384 x 384 have 9 MB.
BATCH_BYTES = 16 << 20


def evaluate(
    model: nn.Module, dataset: Samples, task: Task, *, device: torch.device, how: Acceleration = PLAIN
) -> EvaluationSums:
    """Returns loss and score, summed over the samples."""
    each = per_sample(model, dataset, task, device=device, how=how)
    return EvaluationSums(samples=len(each.losses), loss_sum=each.losses.sum(), score_sum=each.scores.sum())


def per_sample(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    *,
    device: torch.device,
    how: Acceleration = PLAIN,
    batch_size: int = 256,
    should_stop: Callable[[], bool] | None = None,
) -> PerSample:
    """Returns loss, score and confidence of every sample, for membership attacks."""
    columns: tuple[list[NDArray[np.float64]], ...] = ([], [], [])
    labels = [np.empty(0, np.int64)]
    classes = 1
    for output, y in outputs(model, dataset, device, how, batch_size=batch_size, should_stop=should_stop):
        classes = int(output.shape[1]) if has_classes(output, y) else 1
        labels.append(y.long().cpu().numpy() if classes > 1 else np.zeros(len(output), np.int64))
        for column, measure in zip(columns, (task.sample_losses, task.sample_scores, task.confidences), strict=True):
            column.append(measure(output, y).double().cpu().numpy())
    losses, scores, confidences = (np.concatenate([np.empty(0), *column]) for column in columns)
    return PerSample(losses, scores, confidences, np.concatenate(labels), classes)


def has_classes(output: Any, y: Tensor) -> bool:
    """Whether a sample has one class: an output of (batch, classes) and class numbers as targets."""
    return (
        isinstance(output, Tensor)
        and output.ndim == 2
        and output.shape[1] > 1
        and y.ndim == 1
        and not y.is_floating_point()
    )


def fitting(dataset: Samples) -> int:
    """The number of samples whose inputs together have at most BATCH_BYTES, at least 1. Activations are a multiple."""
    if count(dataset) == 0:
        return 1
    x, _ = batch(dataset, [0])
    return max(1, BATCH_BYTES // max(1, x.nbytes))


def outputs(
    model: nn.Module,
    dataset: Samples,
    device: torch.device,
    how: Acceleration = PLAIN,
    *,
    batch_size: int = 256,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields output and target of every batch. The model is in evaluation mode meanwhile.

    A batch that does not fit into memory is halved, and so are those after it.
    """
    dataset = stacked_if_tensors(dataset, device)
    training = model.training
    model.to(device).eval()
    forward = forward_of(model, how, device)
    begin, size, samples = 0, min(batch_size, fitting(dataset)), count(dataset)
    try:
        while begin < samples:
            if should_stop is not None and should_stop():
                raise Abandoned
            found = _outputs(forward, dataset, range(begin, min(begin + size, samples)), device)
            if found is None:
                size = max(1, size // 2)
            else:
                yield found
                begin += size
    finally:
        model.train(training)


def _outputs(
    forward: Callable[[Tensor], Any], dataset: Samples, chosen: range, device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """Output and target of a batch, or None if it must be smaller. A single sample must fit."""
    try:
        with torch.no_grad(), explain_out_of_memory(device, "evaluating one sample"):
            x, y = batch(dataset, chosen, device)
            return forward(x), y
    except OutOfMemory:
        if len(chosen) == 1:
            raise
    # Here the failed call and its tensors are gone.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None
