"""Rapid retraining: the step equals a worked example, a loop over samples, and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from puf_client.routines import curvature
from puf_client.routines.curvature import (
    CurvatureOptions,
    Moments,
    block_mean,
    descend_by_curvature,
    gradient_and_fisher,
)
from puf_client.routines.evaluate import evaluate
from puf_client.tasks import Segmentation, Task
from puf_common.errors import UsageError
from tests.client.routines.points import (
    CPU,
    RUN,
    TASK,
    Linear,
    Vector,
    gradients_of,
    network,
    payload,
    pixels,
    points,
    segmenter,
    settings,
    weights,
)


def test_the_worked_step() -> None:
    model = Vector(0, 0)
    options = CurvatureOptions(block=1, eps=1e-8)
    descend_by_curvature(model, gradients_of((0.5, -2)), Linear(), settings(1e-3), options, context=RUN)
    assert weights(model)[0].tolist() == pytest.approx([-0.002, 0.0005])


def test_gamma_is_the_mean_of_squares_and_not_the_square_of_the_mean() -> None:
    model = Vector(0, 0)
    x = torch.tensor([[1.0, 2.0], [-1.0, 4.0]])
    _, g, gamma = gradient_and_fisher(model, Linear(), dict(model.named_parameters()), x, torch.zeros(2))
    assert g["w"].tolist() == [0, 3]
    assert gamma["w"].tolist() == [1, 10]


@pytest.mark.parametrize(
    ("model", "task", "data"), [(network().eval(), TASK, points(7)), (segmenter(), Segmentation(), pixels(5))]
)
def test_gradients_equal_those_of_single_samples(
    model: nn.Module, task: Task, data: torch.utils.data.TensorDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data.tensors
    trained = dict(model.named_parameters())
    each = [
        torch.autograd.grad(task.loss(model(x[i : i + 1]), y[i : i + 1]), list(trained.values())) for i in range(len(x))
    ]
    whole = torch.autograd.grad(task.loss(model(x), y), list(trained.values()))
    # All samples together, and two samples at a time.
    for limit in (curvature._NUMBERS, 2 * sum(p.numel() for p in trained.values())):
        monkeypatch.setattr(curvature, "_NUMBERS", limit)
        loss, g, gamma = gradient_and_fisher(model, task, trained, x, y)
        assert float(loss) == pytest.approx(float(task.loss(model(x), y).detach()), rel=1e-5)
        for k, name in enumerate(trained):
            assert torch.allclose(g[name], whole[k], atol=1e-6)
            assert torch.allclose(gamma[name], torch.stack([e[k] ** 2 for e in each]).mean(0), atol=1e-6)


def test_blocks_are_neighbours_and_the_last_may_be_smaller() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 9.0]])
    assert block_mean(values, 3).tolist() == [[2, 2, 2, 5], [5, 5, 8, 8]]
    assert torch.equal(block_mean(values, 1), values)
    assert block_mean(torch.tensor(4.0), 3).item() == 4


@given(values=st.lists(st.floats(0, 100, width=32), min_size=1, max_size=30), block=st.integers(1, 8))
def test_averaging_over_blocks_keeps_the_sum(values: list[float], block: int) -> None:
    mean = block_mean(torch.tensor(values, dtype=torch.float64), block)
    assert float(mean.sum()) == pytest.approx(sum(values))


def test_moments_against_numpy() -> None:
    rng = np.random.default_rng(1)
    options = CurvatureOptions(beta1=0.8, beta2=0.9, block=2, eps=1e-3)
    w = torch.zeros(4, dtype=torch.float64)
    moments = Moments(options, 0.05)
    expected, m, v = np.zeros(4), np.zeros(4), np.zeros(4)
    for t in range(1, 6):
        g, gamma = rng.normal(size=4), rng.random(4)
        moments.step({"w": w}, {"w": torch.from_numpy(g)}, {"w": torch.from_numpy(gamma)})
        blocks = np.repeat(gamma.reshape(2, 2).mean(1), 2)
        m = 0.8 * m + 0.2 * g
        v = 0.9 * v + 0.1 * blocks**2
        expected = expected - 0.05 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-3)
    assert w.numpy() == pytest.approx(expected)


def test_training_reduces_the_loss() -> None:
    model, data = network(), points(120)
    before = evaluate(model, data, TASK, device=CPU)
    descend_by_curvature(model, data, TASK, settings(3e-3, epochs=15), CurvatureOptions(), context=RUN)
    after = evaluate(model, data, TASK, device=CPU)
    assert after.loss_sum < 0.7 * before.loss_sum
    assert after.score_sum > 90


def test_frozen_parameters_do_not_change() -> None:
    model = network()
    frozen = model.get_parameter("0.weight").requires_grad_(False).clone()
    before = payload(model)
    descend_by_curvature(model, points(), TASK, settings(1e-3), CurvatureOptions(), context=RUN)
    assert torch.equal(model.get_parameter("0.weight"), frozen)
    assert payload(model) != before


class Choosy(nn.Linear):
    """A model whose control flow depends on a sample's values."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input) if float(input.sum()) > 0 else super().forward(-input)


def test_models_without_a_gradient_of_every_sample_are_refused() -> None:
    mixing = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(UsageError, match=r"batch normalisation \(1\) mixes samples: use group or layer"):
        descend_by_curvature(mixing, points(), TASK, settings(), CurvatureOptions(), context=RUN)
    with pytest.raises(UsageError, match=r"which torch cannot compute for this model: .*vmap"):
        descend_by_curvature(Choosy(3, 3), points(), TASK, settings(), CurvatureOptions(), context=RUN)
