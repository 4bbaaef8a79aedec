"""FUKD (Wu et al. 2022): the model without the target's updates learns from the old model, on data without labels.

    minimise KL(softmax(teacher(x) / T) || softmax(student(x) / T))

Later updates depended on the subtracted ones; distillation repairs this. The client with the unlabeled data runs it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from puf_client.data.samples import Samples
from puf_client.routines.context import RoutineContext
from puf_client.routines.forward import forward_of, forward_of_teacher
from puf_client.routines.train import Batch, TrainResult, TrainSettings, descent, passes
from puf_common.errors import UsageError


@dataclass(frozen=True)
class DistillOptions:
    """Options of the routine. No values are published; T = 3 with 5 epochs of Adam at 1e-3 is this project's choice."""

    temperature: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise UsageError(f"distill: temperature must be above 0, not {self.temperature:g}")


def distill(
    model: nn.Module,
    dataset: Samples,
    settings: TrainSettings,
    options: DistillOptions,
    context: RoutineContext,
    *,
    teacher: nn.Module,
) -> TrainResult:
    """Trains the model (the student) towards the teacher, in place, by Adam with the settings' rate. Labels are not read."""
    teacher.to(context.device).eval()
    forward = forward_of(model, settings, context.device)
    taught = forward_of_teacher(teacher, settings, context.device)

    def loss_of(now: Batch) -> Tensor:
        with torch.no_grad():
            expected = taught(now.x)
        return divergence(expected, forward(now.x), options.temperature)

    step = descent(model, replace(settings, optimizer="adam", weight_decay=0.0), loss_of, context.device)
    return passes(dataset, settings, step, context)


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Returns KL(teacher || student) over dimension 1, as the mean over samples and pixels."""
    if teacher.ndim < 2 or teacher.shape != student.shape:
        raise UsageError(
            f"distillation compares outputs of shape (batch, classes, ...), not {tuple(teacher.shape)} with "
            f"{tuple(student.shape)}"
        )
    known, learnt = ((_scores(output) / temperature).log_softmax(1) for output in (teacher, student))
    return (known.exp() * (known - learnt)).sum(1).mean()


def _scores(output: Tensor) -> Tensor:
    """Returns class scores. A single channel is a foreground score; the background score is 0."""
    return torch.cat([torch.zeros_like(output), output], 1) if output.shape[1] == 1 else output
