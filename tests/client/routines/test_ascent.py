"""PGA: ascent of the loss within a ball."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn

from puf_client.routines import ascent
from puf_client.routines import train as train_module
from puf_client.routines.ascent import AscentOptions, ascend, clip, distance, project, radius_of, reference
from puf_client.routines.context import RoutineContext
from puf_client.routines.evaluate import evaluate
from puf_client.routines.train import train
from puf_common.errors import UsageError
from puf_common.seeds import derive
from tests.client.routines.points import (
    CPU,
    RUN,
    TASK,
    Linear,
    Vector,
    gradients_of,
    network,
    points,
    settings,
    stream,
    weights,
)


def _vector(*values: float) -> list[Tensor]:
    return [torch.tensor(values, dtype=torch.float32)]


def _near(tensors: list[Tensor], *values: float) -> bool:
    return torch.allclose(tensors[0], torch.tensor(values, dtype=torch.float32))


def test_the_worked_reference_projection_and_clipping() -> None:
    assert _near(reference(_vector(1, 1), _vector(4, -2), 1 / 4), 0, 2)
    assert _near(reference(_vector(1, 1), _vector(4, -2), 0.4), -1, 3)
    assert _near(project(_vector(3, 6), _vector(0, 2), 1), 0.6, 2.8)
    inside = _vector(0.3, 2.4)
    assert project(inside, _vector(0, 2), 1)[0] is inside[0]
    assert _near(clip(_vector(6, 8), 5), 3, 4)
    assert _near(clip(_vector(0.6, 0.8), 5), 0.6, 0.8)


def test_clipping_and_distance_are_of_all_tensors_together() -> None:
    parts = [torch.tensor([6.0]), torch.tensor([8.0])]
    assert [float(g) for g in clip(parts, 5)] == pytest.approx([3, 4])
    assert distance(parts, [torch.zeros(1), torch.zeros(1)]) == 10


def test_the_worked_step() -> None:
    model = Vector(1, 1)
    options = AscentOptions(share=1 / 4, delta_l2=1, momentum=0, stop_distance=0)
    ascend(model, gradients_of((6, 8)), Linear(), settings(0.01), options, last=Vector(4, -2), context=RUN)
    assert _near(weights(model), 0.03, 2.04)


def test_momentum_accumulates_and_is_not_projected() -> None:
    model = Vector(0, 0)
    options = AscentOptions(share=0, delta_l2=0.05, momentum=0.5, stop_distance=0)
    ascend(model, gradients_of((3, 4)), Linear(), settings(0.01, epochs=2), options, last=Vector(0, 0), context=RUN)
    # The first step ends on the boundary, at 0.05. The second step, of 0.075, is projected back onto it.
    assert _near(weights(model), 0.03, 0.04)
    free = Vector(0, 0)
    far = AscentOptions(share=0, delta_l2=9, momentum=0.5, stop_distance=0)
    ascend(free, gradients_of((3, 4)), Linear(), settings(0.01, epochs=2), far, last=Vector(0, 0), context=RUN)
    assert _near(weights(free), 0.075, 0.1)


_NUMBERS = st.lists(st.floats(-50, 50, width=32), min_size=4, max_size=4)


@given(point=_NUMBERS, centre=_NUMBERS, radius=st.floats(0.01, 100))
def test_projection_ends_in_the_ball_and_keeps_points_inside(
    point: list[float], centre: list[float], radius: float
) -> None:
    middle = _vector(*centre)
    once = project(_vector(*point), middle, radius)
    # Neighbouring float32 values up to 50 differ by up to 4e-6.
    assert distance(once, middle) <= radius + 2e-5
    assert distance(project(once, middle, radius), once) <= 2e-5


@given(w=_NUMBERS, own=_NUMBERS, share=st.floats(0, 0.9))
def test_reference_and_local_model_average_to_the_global_model(w: list[float], own: list[float], share: float) -> None:
    others = reference(_vector(*w), _vector(*own), share)[0].double()
    again = (1 - share) * others + share * torch.tensor(own).double()
    assert torch.allclose(again, torch.tensor(w).double(), atol=1e-4)


@hypothesis_settings(max_examples=15, deadline=None)
@given(radius=st.floats(0.01, 3), lr=st.floats(0.001, 1), share=st.floats(0, 0.8), momentum=st.sampled_from([0.0, 0.9]))
def test_every_iterate_is_in_the_ball(radius: float, lr: float, share: float, momentum: float) -> None:
    model, last = network(1), network(2)
    centre = reference(weights(model), weights(last), share)
    options = AscentOptions(share=share, delta_l2=radius, momentum=momentum, stop_distance=0)
    away: list[float] = []

    def look(done: int, total: int) -> None:
        away.append(distance(weights(model), centre))

    ascend(model, points(), TASK, settings(lr, epochs=3), options, last=last, context=replace(RUN, progress=look))
    assert len(away) == 12
    assert max(away) <= radius * (1 + 1e-4)


def test_the_targets_loss_rises() -> None:
    model, own = network(), points(40)
    train(model, own, TASK, settings(0.3, epochs=20), context=RUN)
    before = evaluate(model, own, TASK, device=CPU).loss_sum
    options = AscentOptions(share=0.1, delta_l2=0.5)
    ascend(model, own, TASK, settings(0.01, epochs=5), options, last=network(2), context=RUN)
    assert evaluate(model, own, TASK, device=CPU).loss_sum > 1.5 * before


def test_it_ends_when_far_from_the_local_model() -> None:
    done: list[int] = []
    model, last = Vector(0, 0), Vector(0, 0)
    options = AscentOptions(share=0, delta_l2=9, momentum=0, stop_distance=0.12)
    result = ascend(
        model, gradients_of((3, 4)), Linear(), settings(0.01, epochs=5), options, last=last,
        context=replace(RUN, progress=lambda n, of: done.append(n)),
    )  # fmt: skip
    # Each step adds 0.05; 0.15 is the first value above the limit.
    assert done == [1, 2, 3]
    assert result.samples_processed == 3
    assert _near(weights(model), 0.09, 0.12)
    assert _near(weights(last), 0, 0)


def test_a_radius_is_a_third_of_the_distance_to_random_models() -> None:
    centre = _vector(0, 0)
    random_models: list[nn.Module] = [Vector(3, 4), Vector(0, 1)]
    assert radius_of(centre, random_models, AscentOptions(share=0)) == pytest.approx(1)
    squared = radius_of(centre, random_models, AscentOptions(share=0, squared_radius=True))
    assert squared == pytest.approx(math.sqrt(13 / 3))

    asked: list[int] = []

    def fresh(seed: int) -> nn.Module:
        asked.append(seed)
        return network(seed % 2**32)

    model = network()
    ascend(model, points(), TASK, settings(), AscentOptions(share=0), last=network(2), fresh=fresh, context=RUN)
    assert asked == [derive(stream(0), "random model", i) for i in range(10)]
    with pytest.raises(UsageError, match="no radius: set delta_l2"):
        ascend(model, points(), TASK, settings(), AscentOptions(share=0), last=network(2), context=RUN)


def test_buffers_stay_those_of_the_global_model() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    model = normed()
    before = {name: b.clone() for name, b in model.named_buffers()}
    ascend(model, points(), TASK, settings(), AscentOptions(share=0, delta_l2=1), last=normed(), context=RUN)
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())


def test_the_options_set_the_batch_size() -> None:
    sizes: list[Any] = []
    options = AscentOptions(share=0, delta_l2=1, batch_size=20)
    done = sizes.append
    ascend(
        network(),
        points(),
        TASK,
        settings(),
        options,
        last=network(2),
        context=replace(RUN, progress=lambda *told: done(told)),
    )
    assert sizes == [(1, 1)]


def _steps(options: AscentOptions, batch_size: int = 6) -> int:
    """Steps of an ascent over 20 samples in two epochs."""
    done: list[int] = []
    context = RoutineContext(CPU, stream, lambda step, total: done.append(step))
    wanted = settings(0.01, epochs=2.0, batch_size=batch_size)
    ascend(network(), points(), TASK, wanted, options, context, last=network(2))
    return len(done)


def test_the_ascent_has_batches_of_its_own_size() -> None:
    """20 samples in two epochs: 4 batches of 6, 2 of 10, 1 of 512 in each."""
    free = AscentOptions(share=0.25, last_round=1, delta_l2=100.0, stop_distance=0.0)
    assert _steps(free) == 8
    assert _steps(replace(free, batch_size=10)) == 4
    assert _steps(replace(free, batch_size=512)) == 2


def test_the_mutation_to_the_recipes_batches_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = train_module.passes
    monkeypatch.setattr(ascent, "passes", lambda d, s, *a, **k: original(d, replace(s, batch_size=6), *a, **k))
    with pytest.raises(AssertionError):
        test_the_ascent_has_batches_of_its_own_size()
