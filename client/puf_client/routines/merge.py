"""NegMerge (Kim et al. 2024): several trainings from one model, merged where all of them agree on the sign.

    tau_k = w_k - w        tau = mean_k tau_k where all tau_k have the same sign, else 0        model: w + tau

The runs have learning rates between lr / spread and lr * spread, at equal ratios, and random streams of their own. The
session sends tau, scaled and negated as the assignment says. Buffers keep their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from puf_client.data.samples import Samples
from puf_client.routines.context import RoutineContext
from puf_client.routines.train import TrainResult, TrainSettings, train
from puf_client.tasks import Task
from puf_common.errors import UsageError
from puf_common.seeds import derive


@dataclass(frozen=True)
class MergeOptions:
    """Options of the routine. The settings give the middle learning rate and the epochs of all runs together."""

    runs: int = 5
    """K: number of trainings."""
    spread: float = 2.0
    """Ratio of the largest learning rate to the middle one."""

    def __post_init__(self) -> None:
        if self.runs < 2 or self.spread < 1:
            raise UsageError(
                f"merge: runs must be at least 2 and spread at least 1, not {self.runs} and {self.spread:g}"
            )


def merge(
    model: nn.Module,
    dataset: Samples,
    task: Task,
    settings: TrainSettings,
    options: MergeOptions,
    context: RoutineContext,
) -> TrainResult:
    """Changes the model in place by the merged difference of all runs. Loss is their mean."""
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    start = {name: tensor.detach().clone() for name, tensor in _changing(model).items()}
    total = {name: torch.zeros_like(w) for name, w in weights.items()}
    same = {name: torch.ones_like(w, dtype=torch.bool) for name, w in weights.items()}
    signs: dict[str, Tensor] = {}
    results = []
    settings = replace(settings, epochs=settings.epochs / options.runs)
    for number, lr in enumerate(rates(settings.lr, options)):
        _restore(model, start)
        results.append(train(model, dataset, task, replace(settings, lr=lr), _of_run(context, number, options.runs)))
        for name, w in weights.items():
            tau = w.detach() - start[name].to(w.device)
            total[name] = total[name].to(w.device) + tau
            first = signs.setdefault(name, tau.sign())
            same[name] = same[name].to(w.device) & (tau.sign() == first)
    _restore(model, start)
    with torch.no_grad():
        for name, w in weights.items():
            w.add_(torch.where(same[name], total[name] / options.runs, torch.zeros_like(w)))
    processed = sum(result.samples_processed for result in results)
    return TrainResult(sum(r.loss * r.samples_processed for r in results) / processed, processed)


def _changing(model: nn.Module) -> dict[str, Tensor]:
    """Trained parameters and buffers by name. Frozen parameters are not copied."""
    tensors = model.state_dict(keep_vars=True)
    return {name: t for name, t in tensors.items() if not isinstance(t, nn.Parameter) or t.requires_grad}


@torch.no_grad()
def _restore(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, tensor in _changing(model).items():
        tensor.copy_(values[name])


def rates(lr: float, options: MergeOptions) -> Sequence[float]:
    """The learning rate of each run."""
    last = options.runs - 1
    return [lr * options.spread ** (2 * number / last - 1) for number in range(options.runs)]


def _of_run(context: RoutineContext, number: int, runs: int) -> RoutineContext:
    """The context of one run: a random stream of its own, and progress over all runs."""
    report = context.progress
    progress = None if report is None else lambda done, of: report(number * of + done, runs * of)
    return replace(context, stream=partial(_stream, context, number), progress=progress)


def _stream(context: RoutineContext, number: int, epoch: int) -> int:
    return derive(context.stream(epoch), "run", number)
