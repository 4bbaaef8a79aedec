"""MoDe (Zhao et al. 2023), the guidance by a target: it trains on the labels of the degradation model.

The degradation model began at random and never saw the target's data, so its labels argmax M_de(x) do not depend on the
true labels. Retained clients guide by ordinary training. The paper has one rate for both, 5e-4; its authors' code trains
targets at 0.1 and retained clients at 5e-4. The settings give the rate, so both are possible.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puf_client.data.samples import Samples
from puf_client.routines.context import RoutineContext
from puf_client.routines.forward import forward_of, forward_of_teacher
from puf_client.routines.inputs import require_classes
from puf_client.routines.train import Batch, TrainResult, TrainSettings, descent, passes
from puf_client.tasks import Task


def guide(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    settings: TrainSettings,
    context: RoutineContext,
    *,
    teacher: nn.Module,
    forget: NDArray[np.bool_] | None = None,
) -> TrainResult:
    """Trains the model in place on labels that the teacher gives to each batch.

    `forget` marks the samples that get these labels; None means all. The other samples keep their labels. This extends
    the paper's method, which forgets whole clients.
    """
    teacher.to(context.device).eval()
    forward = forward_of(model, settings, context.device)
    taught = forward_of_teacher(teacher, settings, context.device)
    chosen = None if forget is None else torch.as_tensor(forget, device=context.device)

    def loss_of(now: Batch) -> Tensor:
        with torch.no_grad():
            output = taught(now.x)
        require_classes("guidance", output, now.y)
        labels = output.argmax(1)
        if chosen is not None:
            labels = torch.where(chosen[now.chosen], labels, now.y)
        return task.loss(forward(now.x), labels)

    step = descent(model, settings, loss_of, context.device)
    return passes(dataset, settings, step, context)
