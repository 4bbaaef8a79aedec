"""FedOSD (Pan et al. 2025), the target: descent on the loss -log(1 - p_y / 2).

p_y is the probability of the true class. The loss is ln 2 at p_y = 1 and 0 at p_y = 0. Ascent on cross-entropy would have no
bound and would destroy the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from puf_client.data.samples import Samples
from puf_client.routines.context import RoutineContext
from puf_client.routines.forward import forward_of
from puf_client.routines.inputs import require_classes
from puf_client.routines.train import Batch, TrainResult, TrainSettings, descent, passes


def doubt(model: nn.Module, dataset: Samples, settings: TrainSettings, context: RoutineContext) -> TrainResult:
    """Trains the model in place to be less sure of the true classes. Loss is that of this routine."""

    forward = forward_of(model, settings, context.device)

    def loss_of(now: Batch) -> Tensor:
        output = forward(now.x)
        require_classes("FedOSD", output, now.y)
        return unlearning_loss(output, now.y)

    return passes(dataset, settings, descent(model, settings, loss_of, context.device), context)


def unlearning_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean of -log(1 - p_y / 2)."""
    p = scores.softmax(1).gather(1, labels[:, None])[:, 0]
    return -torch.log1p(-p / 2).mean()
