"""Routines by the names that a server may request.

A name from the network is looked up and never imported: it is built in, or the client's own command line lists it as
`--routine package.module:function`. The routines of other unlearning methods are imported when the server requests them,
because most clients never need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from puf_client.data.samples import Samples
from puf_client.routines.context import RoutineContext
from puf_client.routines.inputs import options_from
from puf_client.routines.train import TrainResult, TrainSettings, train
from puf_client.tasks import Task
from puf_common.config import plugins
from puf_common.errors import UsageError
from puf_common.receipts.gap import ClassTable

if TYPE_CHECKING:
    from puf_client.routines.dose import Dose

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


# Changes the model of the inputs in place.
Routine: TypeAlias = Callable[[RoutineInputs, RoutineContext], TrainResult]


def routines_with(own: Iterable[str] = ()) -> Mapping[str, Routine]:
    """The built-in routines, and functions of the user's code under their names package.module:function."""
    return {**ROUTINES, **{spec: _own(spec) for spec in own}}


def _own(spec: str) -> Routine:
    """The user's function, checked when it returns: a wrong result would be an error far from its cause."""
    function = plugins.load(spec)

    def run(given: RoutineInputs, context: RoutineContext) -> TrainResult:
        result = function(given, context)
        if not isinstance(result, TrainResult):
            raise UsageError(
                f"the routine {spec} returned {type(result).__name__}: it must return puf_client.routines.train.TrainResult"
            )
        return result

    return run


def run_routine(
    name: str, inputs: RoutineInputs, context: RoutineContext, known: Mapping[str, Routine] | None = None
) -> TrainResult:
    """Runs a routine by name. Raises `Abandoned` when the context asks it to stop."""
    known = ROUTINES if known is None else known
    if name not in known:
        raise UsageError(
            f"this client does not have the routine {name!r}, only {', '.join(known)}: install a newer version, or start "
            "the client with --routine for a routine of your code"
        )
    return known[name](inputs, context)


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
    from puf_client.routines.dose import dose

    return dose(begin_dose(given, context), *given.common, context)


def begin_dose(given: RoutineInputs, context: RoutineContext) -> Dose:
    """Measures the base model for the routine "dose". Training and the choice of the strength follow."""
    from puf_client.routines.dose import Dose, Unseen
    from puf_client.routines.dosing import DoseOptions

    options, unseen = options_from(DoseOptions, given.options), Unseen(given.holdout, given.unseen)
    return Dose(given.model, given.task, options, context, plain=given.plain, unseen=unseen, how=given.settings)


def _quit(given: RoutineInputs, context: RoutineContext) -> TrainResult:
    from puf_client.routines.quit import QuitOptions, quit_true_class

    options = options_from(QuitOptions, given.options)
    return quit_true_class(given.model, given.samples, given.settings, options, context)


def _merge(given: RoutineInputs, context: RoutineContext) -> TrainResult:
    from puf_client.routines.merge import MergeOptions, merge

    return merge(*given.common, options_from(MergeOptions, given.options), context)


def _doubt(given: RoutineInputs, context: RoutineContext) -> TrainResult:
    from puf_client.routines.doubt import doubt

    return doubt(given.model, given.samples, given.settings, context)


ROUTINES: dict[str, Routine] = {
    "train": _train,
    "dose": _dose,
    "ascent": _ascent,
    "guide": _guide,
    "aux_head": _aux_head,
    "curvature": _curvature,
    "distill": _distill,
    "quit": _quit,
    "merge": _merge,
    "doubt": _doubt,
}
