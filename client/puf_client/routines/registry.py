"""Routines by the names that a server may ask for, and what each of them is given.

A name from the network is looked up here and never imported. Routines of methods that most federations do not use are
imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from puf_client import routines
from puf_client.routines import Samples, TrainResult, TrainSettings
from puf_client.routines.inputs import model_from, options_from
from puf_client.session.assignment import TrainTask
from puf_client.tasks import Task
from puf_common.errors import UsageError
from puf_common.tensors.manifest import Manifest

__all__ = ["ROUTINES", "WITHOUT_AUGMENTATION", "Job", "Progress"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work. `model` has the base's weights and is moved in place."""

    work: TrainTask
    model: nn.Module
    manifest: Manifest
    samples: Samples
    task: Task
    settings: TrainSettings
    # Which of the samples are to be forgotten; None: all of them.
    forget: NDArray[np.bool_] | None
    # Builds a model with the weights of another seed.
    fresh: Callable[[int], nn.Module]
    device: torch.device
    progress: Progress | None

    @property
    def second(self) -> nn.Module:
        """The other model that the work names."""
        if self.work.aux_payload is None:
            raise UsageError(f"the routine {self.work.routine!r} needs a second model, and the work names none")
        return model_from(self.model, self.manifest, self.work.aux_payload)

    @property
    def shared(self) -> dict[str, Any]:
        """What every routine takes alike."""
        return {
            "device": self.device,
            "stream": self.work.stream,
            "progress": self.progress,
            "should_stop": self.work.abandoned,
        }


def _train(job: Job) -> TrainResult:
    return routines.train(job.model, job.samples, job.task, job.settings, **job.shared)


def _ascent(job: Job) -> TrainResult:
    from puf_client.routines.ascent import AscentOptions, ascend

    options = options_from(AscentOptions, job.work.options)
    return ascend(
        job.model, job.samples, job.task, job.settings, options, last=job.second, fresh=job.fresh, **job.shared
    )


def _guide(job: Job) -> TrainResult:
    from puf_client.routines.guide import guide

    return guide(job.model, job.samples, job.task, job.settings, teacher=job.second, forget=job.forget, **job.shared)


def _aux_head(job: Job) -> TrainResult:
    from puf_client.routines.aux_head import AuxHeadOptions, aux_head

    options = options_from(AuxHeadOptions, job.work.options)
    named = job.work.work.outputs
    return aux_head(
        job.model, job.samples, job.task, job.settings, options, forget=job.forget, outputs_named=named, **job.shared
    )


def _curvature(job: Job) -> TrainResult:
    from puf_client.routines.curvature import CurvatureOptions, descend_by_curvature

    options = options_from(CurvatureOptions, job.work.options)
    return descend_by_curvature(job.model, job.samples, job.task, job.settings, options, **job.shared)


def _distill(job: Job) -> TrainResult:
    from puf_client.routines.distill import DistillOptions, distill

    options = options_from(DistillOptions, job.work.options)
    return distill(job.model, job.samples, job.settings, options, teacher=job.second, **job.shared)


ROUTINES: dict[str, Callable[[Job], TrainResult]] = {
    "train": _train,
    "ascent": _ascent,
    "guide": _guide,
    "aux_head": _aux_head,
    "curvature": _curvature,
    "distill": _distill,
}
# Features are taken once, so augmentation would only freeze one draw of it.
WITHOUT_AUGMENTATION = frozenset({"aux_head"})
