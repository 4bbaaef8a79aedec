"""One dose of adaptive strength: descent on the samples to forget, and the strength with which its update is negated.

The target measures the gap of the base model: how much better it knows the samples than unseen ones. It trains as usual; the
update is Delta. Then it searches, on its own data, the smallest kappa of a geometric grid for which the mean p(y|x) of the
model w - kappa * Delta is lower than before by the wanted amount.

Where samples have classes, training shifts the logits by the log of the label mix. What the mix alone teaches is then not
in the update, so that negating it does not remove whole classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puf_client.data.samples import Samples, count, select
from puf_client.routines.context import RoutineContext
from puf_client.routines.dosing import DoseOptions, own_share, searched
from puf_client.routines.evaluate import per_sample
from puf_client.routines.per_sample import PerSample
from puf_client.routines.per_sample import unseen as all_unseen
from puf_client.routines.train import TrainResult, TrainSettings, descent, forward_of, passes
from puf_client.tasks import Task
from puf_common.errors import UsageError
from puf_common.receipts.gap import ClassTable, DoseReport, gap


@dataclass(frozen=True)
class Unseen:
    """Samples that no model was trained on: the client's own hold-out, and the others' by class."""

    own: Samples | None
    others: ClassTable | None


def dose(
    model: nn.Module,
    samples: Samples,
    task: Task,
    settings: TrainSettings,
    options: DoseOptions,
    context: RoutineContext,
    *,
    plain: Samples,
    unseen: Unseen,
) -> TrainResult:
    """Trains the model in place and chooses kappa. `plain` are the samples without augmentation."""

    def measure(dataset: Samples) -> PerSample:
        return per_sample(model, dataset, task, device=context.device, should_stop=context.should_stop)

    before = measure(plain)
    own = measure(unseen.own) if unseen.own is not None else None
    if own is None and unseen.others is None:
        raise UsageError("a dose needs hold-out samples to compare with, and no client has any")
    pool = all_unseen(unseen.others, own)
    found = gap(before.confidences, before.labels, pool)
    if found is None:
        raise UsageError("a dose needs more hold-out samples to compare with: no dose without a measurement")
    need = options.need(found, own_share(before, own, unseen.others))
    hold = need <= options.largest_fall
    if options.skip(found):
        return TrainResult(float("nan"), 0, DoseReport(kappa=0.0, gap=found, hold=hold))
    base = _tensors(model)
    forward, shift = forward_of(model, settings, context.device), _shift(before, context.device)

    def loss_of(output: Tensor, y: Tensor) -> Tensor:
        return task.loss(output if shift is None else output + shift, y)

    step = descent(model, settings, lambda now: loss_of(forward(now.x), now.y), context.device)
    result = passes(samples, settings, step, context)
    trained = _tensors(model)
    chosen = searched(count(plain))
    few = plain if len(chosen) == count(plain) else select(plain, list(chosen))
    level = float(before.confidences[np.asarray(chosen)].mean())

    def fall(kappa: float) -> float:
        _set(model, base, [w - kappa * (t - w) for w, t in zip(base.parameters, trained.parameters, strict=True)])
        return level - float(np.nan_to_num(measure(few).confidences).mean())

    kappa = options.smallest(min(need, options.largest_fall, level / 2), fall)
    _set(model, trained, trained.parameters)
    return replace(result, dose=DoseReport(kappa=kappa, gap=found, hold=hold))


def _shift(samples: PerSample, device: torch.device) -> Tensor | None:
    """log((n_c + 1) / (n + K)) by class; None if samples have no classes."""
    if samples.classes == 1:
        return None
    counts: NDArray[np.int64] = np.bincount(samples.labels, minlength=samples.classes)
    mix = (counts + 1) / (counts.sum() + samples.classes)
    return torch.log(torch.tensor(mix, dtype=torch.float32, device=device))


@dataclass(frozen=True)
class _Tensors:
    parameters: list[Tensor]
    buffers: list[Tensor]


def _tensors(model: nn.Module) -> _Tensors:
    return _Tensors([p.detach().clone() for p in model.parameters()], [b.clone() for b in model.buffers()])


@torch.no_grad()
def _set(model: nn.Module, tensors: _Tensors, parameters: list[Tensor]) -> None:
    """Gives the model these parameters, and the buffers of `tensors`: buffers are never negated."""
    for parameter, value in zip(model.parameters(), parameters, strict=True):
        parameter.copy_(value)
    for buffer, value in zip(model.buffers(), tensors.buffers, strict=True):
        buffer.copy_(value)
