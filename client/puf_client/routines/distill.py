"""FUKD (Wu et al. 2022): the model without the target's updates learns from the old one, on data without labels.

    minimise KL(softmax(teacher(x) / T) || softmax(student(x) / T))

Subtracting updates leaves out that later ones depended on them; this repairs it. Whoever holds the unlabeled data runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from puf_client.data.samples import Samples
from puf_client.routines.train import Batch, TrainResult, TrainSettings, descent, passes
from puf_common.errors import UsageError

__all__ = ["DistillOptions", "distill", "divergence"]


@dataclass(frozen=True)
class DistillOptions:
    """Nothing about it is published with the method; 3 here, with 5 epochs of Adam at 1e-3, is this project's choice."""

    temperature: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"distill: temperature must be above 0, not {self.temperature:g}")


def distill(
    model: nn.Module,
    dataset: Samples,
    settings: TrainSettings,
    options: DistillOptions,
    *,
    teacher: nn.Module,
    device: torch.device,
    stream: Callable[[int], int],
    progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> TrainResult:
    """Moves the model (the student) towards the teacher, in place, by Adam with the settings' rate. Labels are not read."""
    teacher.to(device).eval()

    def loss_of(now: Batch) -> Tensor:
        with torch.no_grad():
            said = teacher(now.x)
        return divergence(said, model(now.x), options.temperature)

    step = descent(model, replace(settings, optimizer="adam", weight_decay=0.0), loss_of, device)
    return passes(dataset, settings, step, device=device, stream=stream, progress=progress, should_stop=should_stop)


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """KL from teacher to student over dimension 1, mean over samples (and pixels)."""
    if teacher.ndim < 2 or teacher.shape != student.shape:
        raise UsageError(
            f"distillation compares classes, output (batch, classes, ...), not {tuple(teacher.shape)} with "
            f"{tuple(student.shape)}"
        )
    known, learnt = ((_scores(output) / temperature).log_softmax(1) for output in (teacher, student))
    return (known.exp() * (known - learnt)).sum(1).mean()


def _scores(output: Tensor) -> Tensor:
    """One channel is the score of a foreground against a background of 0."""
    return torch.cat([torch.zeros_like(output), output], 1) if output.shape[1] == 1 else output
