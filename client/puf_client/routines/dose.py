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
from puf_client.routines.forward import PLAIN, Acceleration, forward_of
from puf_client.routines.per_sample import PerSample
from puf_client.routines.per_sample import unseen as all_unseen
from puf_client.routines.train import TrainResult, TrainSettings, descent, passes
from puf_client.tasks import Task
from puf_common.errors import UsageError
from puf_common.models.module_tensors import trained
from puf_common.receipts.gap import ClassTable, DoseReport, gap


@dataclass(frozen=True)
class Unseen:
    """Samples that no model was trained on: the client's own hold-out, and the others' by class."""

    own: Samples | None
    others: ClassTable | None


class Dose:
    """One dose on a model with the base weights: measures it now, and chooses kappa after the training.

    `plain` are the samples without augmentation. Raises `UsageError` if there is too little unseen data to measure with.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        options: DoseOptions,
        context: RoutineContext,
        *,
        plain: Samples,
        unseen: Unseen,
        how: Acceleration = PLAIN,
    ) -> None:
        self._how = how
        self._model, self._task, self._options, self._context, self._plain = model, task, options, context, plain
        self._before = before = self._measure(plain)
        own = self._measure(unseen.own) if unseen.own is not None else None
        if own is None and unseen.others is None:
            raise UsageError("a dose needs hold-out samples to compare with, and no client has any")
        found = gap(before.confidences, before.labels, all_unseen(unseen.others, own))
        if found is None:
            raise UsageError("a dose needs more hold-out samples to compare with: no dose without a measurement")
        self._gap = found
        self._need = options.need(found, own_share(before, own, unseen.others))
        self._base = _tensors(model)

    @property
    def skipped(self) -> DoseReport | None:
        """The report of a dose that needs no training, because the model already knows the samples less than unseen ones."""
        return self._report(0.0) if self._options.skip(self._gap) else None

    @property
    def shift(self) -> Tensor | None:
        """What training adds to the logits; None if samples have no classes."""
        return _shift(self._before, self._context.device)

    def choose(self) -> DoseReport:
        """Returns the strength for the model as it is trained now. The model keeps its trained weights."""
        options, base, ended = self._options, self._base, _tensors(self._model)
        samples = count(self._plain)
        chosen = searched(samples)
        few = self._plain if len(chosen) == samples else select(self._plain, list(chosen))
        level = float(self._before.confidences[np.asarray(chosen)].mean())

        def fall(kappa: float) -> float:
            tried = [w - kappa * (t - w) for w, t in zip(base.parameters, ended.parameters, strict=True)]
            _set(self._model, base, tried)
            return level - float(np.nan_to_num(self._measure(few).confidences).mean())

        kappa = options.smallest(min(self._need, options.largest_fall, level / 2), fall)
        _set(self._model, ended, ended.parameters)
        return self._report(kappa)

    def _report(self, kappa: float) -> DoseReport:
        return DoseReport(kappa=kappa, gap=self._gap, hold=self._need <= self._options.largest_fall)

    def _measure(self, dataset: Samples) -> PerSample:
        context = self._context
        return per_sample(
            self._model, dataset, self._task, device=context.device, how=self._how, should_stop=context.should_stop
        )


def dose(
    started: Dose, model: nn.Module, samples: Samples, task: Task, settings: TrainSettings, context: RoutineContext
) -> TrainResult:
    """Trains the model of a dose in place and chooses kappa."""
    if started.skipped is not None:
        return TrainResult(float("nan"), 0, started.skipped)
    forward, shift = forward_of(model, settings, context.device), started.shift

    def loss_of(output: Tensor, y: Tensor) -> Tensor:
        return task.loss(output if shift is None else output + shift, y)

    step = descent(model, settings, lambda now: loss_of(forward(now.x), now.y), context.device)
    result = passes(samples, settings, step, context)
    return replace(result, dose=started.choose())


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
    return _Tensors([p.detach().clone() for p in trained(model)], [b.clone() for b in model.buffers()])


@torch.no_grad()
def _set(model: nn.Module, tensors: _Tensors, parameters: list[Tensor]) -> None:
    """Gives the model these trained parameters, and the buffers of `tensors`: buffers are never negated."""
    for parameter, value in zip(trained(model), parameters, strict=True):
        parameter.copy_(value)
    for buffer, value in zip(model.buffers(), tensors.buffers, strict=True):
        buffer.copy_(value)
