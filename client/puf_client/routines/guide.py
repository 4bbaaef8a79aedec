"""MoDe (Zhao et al. 2023), the guidance of a target: it learns what the degradation model says, not what is true.

The degradation model began at random and never saw the target's data, so the labels argmax M_de(x) carry nothing of the
truth. Retained clients guide by ordinary training. The paper has one rate for both, 5e-4; its authors' code trains
targets at 0.1 and retained clients at 5e-4. The rate comes with the settings, so that both can be had.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puf_client.data.samples import Samples
from puf_client.routines.inputs import require_classes
from puf_client.routines.train import Batch, TrainResult, TrainSettings, descent, passes
from puf_client.tasks import Task

__all__ = ["guide"]


def guide(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    settings: TrainSettings,
    *,
    teacher: nn.Module,
    forget: NDArray[np.bool_] | None = None,
    device: torch.device,
    stream: Callable[[int], int],
    progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> TrainResult:
    """Trains the model in place on the teacher's labels, given to every batch as it is seen.

    `forget` says which samples get them; the others keep their own (an extension for samples: the paper's method
    forgets whole clients). None: all of them.
    """
    teacher.to(device).eval()
    chosen = None if forget is None else torch.as_tensor(forget, device=device)

    def loss_of(now: Batch) -> Tensor:
        with torch.no_grad():
            said = teacher(now.x)
        require_classes("guidance", said, now.y)
        labels = said.argmax(1)
        if chosen is not None:
            labels = torch.where(chosen[now.chosen], labels, now.y)
        return task.loss(model(now.x), labels)

    step = descent(model, settings, loss_of, device)
    return passes(dataset, settings, step, device=device, stream=stream, progress=progress, should_stop=should_stop)
