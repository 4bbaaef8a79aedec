"""Properties of every routine: repeatable bits, progress reports, and an early stop."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from puf_client.routines.ascent import AscentOptions, ascend
from puf_client.routines.aux_head import AuxHeadOptions, aux_head
from puf_client.routines.context import Abandoned, RoutineContext
from puf_client.routines.curvature import CurvatureOptions, descend_by_curvature
from puf_client.routines.distill import DistillOptions, distill
from puf_client.routines.doubt import doubt
from puf_client.routines.guide import guide
from puf_client.routines.inputs import model_from, options_from
from puf_client.routines.merge import MergeOptions, merge
from puf_client.routines.quit import QuitOptions, quit_true_class
from puf_client.routines.train import TrainResult
from puf_common.errors import PufError, UsageError
from puf_common.models import module_tensors
from tests.client.routines.points import CPU, RUN, TASK, network, payload, points, settings, stream

Routine = Callable[..., TrainResult]


def _ascent(model: nn.Module, data: Any, **run: Any) -> TrainResult:
    options = AscentOptions(share=0.2, stop_distance=0)
    return ascend(model, data, TASK, settings(epochs=2.5), options, last=network(2), fresh=network, **run)


def _guide(model: nn.Module, data: Any, **run: Any) -> TrainResult:
    return guide(model, data, TASK, settings(epochs=2.5), teacher=network(2), **run)


def _aux_head(model: nn.Module, data: Any, **run: Any) -> TrainResult:
    return aux_head(model, data, TASK, settings(epochs=2.5), AuxHeadOptions(), **run)


def _curvature(model: nn.Module, data: Any, **run: Any) -> TrainResult:
    return descend_by_curvature(model, data, TASK, settings(1e-3, epochs=2.5), CurvatureOptions(), **run)


def _distill(model: nn.Module, data: Any, **run: Any) -> TrainResult:
    return distill(model, data, settings(1e-2, epochs=2.5), DistillOptions(), teacher=network(2), **run)


def _quit(model: nn.Module, data: Any, **run: Any) -> TrainResult:
    return quit_true_class(model, data, settings(epochs=2.5), QuitOptions(batch_size=0), **run)


def _doubt(model: nn.Module, data: Any, **run: Any) -> TrainResult:
    return doubt(model, data, settings(epochs=2.5), **run)


def _merge(model: nn.Module, data: Any, **run: Any) -> TrainResult:
    return merge(model, data, TASK, settings(epochs=2.5), MergeOptions(runs=2), **run)


def _stream_of(seed: int, epoch: int) -> int:
    return stream(epoch + 100 * seed)


EVERY = pytest.mark.parametrize("routine", [_ascent, _guide, _aux_head, _curvature, _distill, _quit, _doubt, _merge])


@EVERY
def test_equal_streams_give_equal_bits_and_other_streams_do_not(routine: Routine) -> None:
    results = []
    for seed in (0, 0, 1):
        torch.rand(3), np.random.rand(), random.random()
        model = network()
        before = payload(model)
        result = routine(model, points(), context=RoutineContext(CPU, partial(_stream_of, seed)))
        assert payload(model) != before
        results.append((payload(model), result))
    assert results[0] == results[1]
    assert results[0][0] != results[2][0]


@EVERY
def test_progress_is_reported_and_samples_are_counted(routine: Routine) -> None:
    reported: list[tuple[int, int]] = []
    result = routine(network(), points(20), context=replace(RUN, progress=lambda done, of: reported.append((done, of))))
    # An epoch of 20 samples has 4 batches of up to 6. There are two and a half epochs.
    assert reported == [(done, 10) for done in range(1, 11)]
    assert result.samples_processed == 52
    assert np.isfinite(result.loss)


@EVERY
def test_a_caller_can_stop_between_batches(routine: Routine) -> None:
    done: list[int] = []
    with pytest.raises(Abandoned):
        routine(
            network(),
            points(),
            context=replace(RUN, progress=lambda n, of: done.append(n), should_stop=lambda: len(done) == 3),
        )
    assert done == [1, 2, 3]


@EVERY
def test_no_samples_and_values_that_are_not_finite_are_refused(routine: Routine) -> None:
    with pytest.raises(UsageError, match="no sample to train on"):
        routine(network(), points(0), context=RUN)
    data = points()
    data.tensors[0][3] = float("nan")
    with pytest.raises(PufError, match="the loss became nan in batch"):
        routine(network(), data, context=RUN)


def test_options_are_set_by_name() -> None:
    assert options_from(AscentOptions, {"share": 0.25, "batch_size": 64.0}) == AscentOptions(share=0.25, batch_size=64)
    assert type(options_from(CurvatureOptions, {"block": 2.0}).block) is int
    with pytest.raises(UsageError, match="routine distill has no option 'heat'; it takes temperature"):
        options_from(DistillOptions, {"heat": 1.0})
    with pytest.raises(UsageError, match="routine ascent needs the option share"):
        options_from(AscentOptions, {})
    for odd in (2.5, float("inf"), float("nan")):
        with pytest.raises(UsageError, match="routine curvature: option block must be a whole number"):
            options_from(CurvatureOptions, {"block": odd})


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (AscentOptions, {"share": 1.0}, "share must be at least 0 and below 1, not 1: without other clients"),
        (AscentOptions, {"share": 0.5, "clip": -1.0}, "clip must be 0 or more"),
        (AscentOptions, {"share": 0.5, "delta_l2": float("nan")}, "delta_l2 must be 0 or more, not nan"),
        (AscentOptions, {"share": 0.5, "random_models": 0.0}, "random_models must be at least 1"),
        (AuxHeadOptions, {"init_std": -1.0}, "init_std and weight_decay must be 0 or more"),
        (CurvatureOptions, {"beta2": 1.0}, "betas must be at least 0 and below 1"),
        (CurvatureOptions, {"eps": 0.0}, "eps above 0"),
        (DistillOptions, {"temperature": 0.0}, "temperature must be above 0"),
    ],
)
def test_wrong_options_are_refused(kind: type[Any], given: dict[str, float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        options_from(kind, given)


def test_a_second_model_does_not_change_the_first() -> None:
    model, other = network(1), network(2)
    before = payload(model)
    made = model_from(model, module_tensors.manifest_of(model), payload(other))
    assert payload(made) == payload(other)
    assert payload(model) == before
    assert payload(copy.deepcopy(model)) == before
