from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from puf_client.tasks import Classification, Segmentation, Task, task_named
from puf_common.errors import UsageError


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _classes(seed: int, count: int, *shape: int) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), classes=st.integers(1, 4), kind=st.sampled_from(["classification", "2d", "3d"]))
def test_properties_of_every_task(seed: int, classes: int, kind: str) -> None:
    pixels = {"classification": (), "2d": (5, 4), "3d": (3, 4, 2)}[kind]
    task: Task = Classification() if kind == "classification" else Segmentation()
    output = _random(seed, 6, classes, *pixels).requires_grad_()
    target = _classes(seed, max(classes, 1 if kind == "classification" else 2), 6, *pixels)
    losses, scores = task.sample_losses(output, target), task.sample_scores(output, target)
    confidences = task.confidences(output, target)
    assert losses.shape == scores.shape == confidences.shape == (6,)
    assert losses.min() >= 0
    assert 0 <= scores.min() <= scores.max() <= 1
    assert 0 <= confidences.min() <= confidences.max() <= 1 + 1e-6
    loss = task.loss(output, target)
    assert torch.allclose(loss, losses.mean(), atol=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert output.grad is not None
    assert output.grad.isfinite().all()
    one = task.sample_losses(output[2:3], target[2:3])
    assert torch.allclose(one, losses[2:3], atol=1e-5), "a sample's loss does not depend on its batch"


def test_classification_by_hand() -> None:
    output = torch.tensor([[math.log(3.0), 0.0], [0.0, math.log(3.0)]])
    target = torch.tensor([0, 0])
    task = Classification()
    assert task.confidences(output, target).tolist() == pytest.approx([0.75, 0.25])
    assert task.sample_scores(output, target).tolist() == [1, 0]
    assert task.sample_losses(output, target).tolist() == pytest.approx([-math.log(0.75), -math.log(0.25)])


def test_dice_by_hand() -> None:
    truth = torch.tensor([[[1, 1], [0, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 0]], [[1, 0], [0, 0]]])
    seen = torch.tensor([[[1, 0], [1, 0]], [[0, 0], [0, 0]], [[1, 0], [0, 0]], [[1, 0], [0, 0]]])
    expected = [0.5, 1.0, 0.0, 1.0]
    assert Segmentation().sample_scores((seen * 2 - 1.0)[:, None], truth).tolist() == expected
    two_classes = functional.one_hot(seen, 2).movedim(-1, 1).float()
    assert Segmentation().sample_scores(two_classes, truth).tolist() == expected


def test_dice_of_several_classes_counts_present_classes() -> None:
    truth = torch.tensor([[[1, 2], [0, 0]]])
    seen = torch.tensor([[[1, 0], [0, 0]]])
    output = functional.one_hot(seen, 4).movedim(-1, 1).float()
    assert Segmentation().sample_scores(output, truth).tolist() == [0.5], (
        "class 1 right, class 2 missed, class 3 nowhere"
    )


def test_segmentation_is_cross_entropy_plus_soft_dice() -> None:
    output, target = _random(1, 3, 4, 5, 5), _classes(2, 4, 3, 5, 5)
    probabilities, truth = output.softmax(1)[:, 1:], functional.one_hot(target, 4).movedim(-1, 1)[:, 1:]
    overlap = (probabilities * truth).sum((2, 3))
    dice = (2 * overlap + 1) / (probabilities.sum((2, 3)) + truth.sum((2, 3)) + 1)
    expected = functional.cross_entropy(output, target) + 1 - dice.mean()
    assert torch.allclose(Segmentation().loss(output, target), expected, atol=1e-6)


def test_one_output_channel_is_two_classes() -> None:
    output, target = _random(1, 3, 1, 5, 5), _classes(2, 2, 3, 5, 5)
    both = torch.cat([torch.zeros_like(output), output], 1)
    task = Segmentation()
    for measure in (task.sample_losses, task.sample_scores, task.confidences):
        assert torch.allclose(measure(output, target), measure(both, target), atol=1e-6)
        assert torch.equal(measure(output, target), measure(output, target[:, None].float())), "masks may be float"


def test_extreme_outputs_stay_finite() -> None:
    output = torch.tensor([[[[1e4, -1e4]]]])
    for target in (torch.tensor([[[1, 0]]]), torch.tensor([[[0, 1]]])):
        assert Segmentation().loss(output, target).isfinite()


def test_a_target_of_another_shape_is_refused() -> None:
    with pytest.raises(UsageError, match=r"output \(1, 2, 4, 4\) needs a target of class numbers of shape \(1, 4, 4\)"):
        Segmentation().loss(torch.zeros(1, 2, 4, 4), torch.zeros(1, 2, 4, 4))


def test_tasks_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(task_named("classification"), Classification)
    assert isinstance(task_named("segmentation"), Segmentation)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_task.py").write_text(
        "from puf_client.tasks import Classification\n"
        "class Whole(Classification): ...\n"
        "class Half:\n    def loss(self, output, target): ...\n    def sample_losses(self, output, target): ...\n"
        "class Needy:\n    def __init__(self, argument): ...\n"
    )
    assert isinstance(task_named("own_task:Whole"), Classification)
    with pytest.raises(UsageError, match="own_task:Half lacks sample_scores, confidences"):
        task_named("own_task:Half")
    with pytest.raises(UsageError, match=r"Needy failed: .*missing 1 required"):
        task_named("own_task:Needy")
    with pytest.raises(UsageError, match="no built-in task 'regression'"):
        task_named("regression")
