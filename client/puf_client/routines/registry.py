"""Routines by the names that a server may request.

A name from the network is looked up here and never imported. The routines of other unlearning methods are imported when
the server requests them, because most clients never need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from puf_client.data.samples import Samples
from puf_client.routines.context import RoutineContext
from puf_client.routines.inputs import options_from
from puf_client.routines.train import TrainResult, TrainSettings, train
from puf_client.tasks import Task
from puf_common.errors import UsageError
from puf_common.receipts.gap import ClassTable

# Features are computed once, so augmentation would be the same in every epoch.
WITHOUT_AUGMENTATION = frozenset({"aux_head"})


@dataclass(frozen=True, kw_only=True)
class RoutineInputs:
    """Everything that a routine may use. `model` has the base weights; the routine changes it in place."""

    model: nn.Module
    samples: Samples
    task: Task
    settings: TrainSettings
    options: Mapping[str, float]
    # Names of the tensors that the server expects; empty for all.
    outputs: Sequence[str]
    # Marks the samples to forget; None means all.
    forget: NDArray[np.bool_] | None
    # The second model that the assignment names, or None.
    second: nn.Module | None
    # Builds a model with the weights of another seed.
    fresh: Callable[[int], nn.Module]
    # The same samples without augmentation, the client's hold-out, and the others' hold-outs by class, to measure with.
    plain: Samples
    holdout: Samples | None = None
    unseen: ClassTable | None = None

    @property
    def common(self) -> tuple[nn.Module, Samples, Task, TrainSettings]:
        return self.model, self.samples, self.task, self.settings

    @property
    def required_second(self) -> nn.Module:
        if self.second is None:
            raise UsageError("the routine needs a second model, and the assignment names none")
        return self.second


def run_routine(name: str, inputs: RoutineInputs, context: RoutineContext) -> TrainResult:
    """Runs a routine by name. Raises `Abandoned` when the context asks it to stop."""
    if name not in ROUTINES:
        raise UsageError(
            f"this client does not have the routine {name!r}, only {', '.join(ROUTINES)}: install a newer version"
        )
    return ROUTINES[name](inputs, context)


def _train(given: RoutineInputs, context: RoutineContext) -> TrainResult:
    return train(*given.common, context)


def _ascent(given: RoutineInputs, context: RoutineContext) -> TrainResult:
    from puf_client.routines.ascent import AscentOptions, ascend

    options = options_from(AscentOptions, given.options)
    return ascend(*given.common, options, context, last=given.required_second, fresh=given.fresh)


def _guide(given: RoutineInputs, context: RoutineContext) -> TrainResult:
    from puf_client.routines.guide import guide

    return guide(*given.common, context, teacher=given.required_second, forget=given.forget)


def _aux_head(given: RoutineInputs, context: RoutineContext) -> TrainResult:
    from puf_client.routines.aux_head import AuxHeadOptions, aux_head

    options = options_from(AuxHeadOptions, given.options)
    return aux_head(*given.common, options, context, forget=given.forget, outputs_named=given.outputs)


def _curvature(given: RoutineInputs, context: RoutineContext) -> TrainResult:
    from puf_client.routines.curvature import CurvatureOptions, descend_by_curvature

    return descend_by_curvature(*given.common, options_from(CurvatureOptions, given.options), context)


def _distill(given: RoutineInputs, context: RoutineContext) -> TrainResult:
    from puf_client.routines.distill import DistillOptions, distill

    options = options_from(DistillOptions, given.options)
    return distill(given.model, given.samples, given.settings, options, context, teacher=given.required_second)


def _dose(given: RoutineInputs, context: RoutineContext) -> TrainResult:
    from puf_client.routines.dose import Unseen, dose
    from puf_client.routines.dosing import DoseOptions

    options = options_from(DoseOptions, given.options)
    return dose(*given.common, options, context, plain=given.plain, unseen=Unseen(given.holdout, given.unseen))


ROUTINES: dict[str, Callable[[RoutineInputs, RoutineContext], TrainResult]] = {
    "train": _train,
    "dose": _dose,
    "ascent": _ascent,
    "guide": _guide,
    "aux_head": _aux_head,
    "curvature": _curvature,
    "distill": _distill,
}
