"""FedQUIT (Mora et al. 2024): the target distils from the model itself, with the true class's score taken away.

    teacher's scores z = w(x), with z_y <- min_c z_c        minimise KL(softmax(z) || softmax(student(x)))

The teacher is the model at the start and does not change. The student learns to be least sure of the true class, and
keeps the ratios of all other classes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from puf_client.data.samples import Samples
from puf_client.routines.context import RoutineContext
from puf_client.routines.distill import divergence
from puf_client.routines.forward import forward_of, forward_of_teacher
from puf_client.routines.inputs import require_classes
from puf_client.routines.train import Batch, TrainResult, TrainSettings, descent, passes
from puf_common.errors import UsageError


@dataclass(frozen=True)
class QuitOptions:
    """Options of the routine. The settings give learning rate and epochs (published: 1e-3 or 1e-4, and 1)."""

    batch_size: int = 32
    """0: the batch size of the settings."""
    adam: bool = True
    """Adam without weight decay where the settings have sgd, as in the authors' code. AdamW stays."""

    def __post_init__(self) -> None:
        if self.batch_size < 0:
            raise UsageError(f"quit: batch_size must be at least 0, not {self.batch_size}")


def quit_true_class(
    model: nn.Module,
    dataset: Samples,
    settings: TrainSettings,
    options: QuitOptions,
    context: RoutineContext,
) -> TrainResult:
    """Trains the model in place, away from the true classes of the samples. Buffers keep their values."""
    teacher = copy.deepcopy(model).to(context.device).eval()
    buffers = [b.clone() for b in model.buffers()]
    settings = replace(settings, batch_size=options.batch_size or settings.batch_size)
    if options.adam and settings.optimizer == "sgd":
        settings = replace(settings, optimizer="adam", weight_decay=0.0)

    forward = forward_of(model, settings, context.device)
    taught = forward_of_teacher(teacher, settings, context.device)

    def loss_of(now: Batch) -> Tensor:
        with torch.no_grad():
            known = taught(now.x)
        require_classes("FedQUIT", known, now.y)
        return divergence(without_true_class(known, now.y), forward(now.x), 1.0)

    result = passes(dataset, settings, descent(model, settings, loss_of, context.device), context)
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(value)
    return result


def without_true_class(scores: Tensor, labels: Tensor) -> Tensor:
    """The scores with the entry of each true class replaced by the smallest entry of its sample."""
    return scores.scatter(1, labels[:, None], scores.min(1, keepdim=True).values)
