"""FUKD: the student learns the outputs of the teacher."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from puf_client.routines.distill import DistillOptions, distill, divergence
from puf_common.errors import UsageError
from tests.client.routines.points import RUN, network, payload, pixels, points, relabelled, segmenter, settings


def test_the_worked_temperature() -> None:
    assert (torch.tensor([[2.0, 0.0]]) / 2).softmax(1)[0].tolist() == pytest.approx([0.731059, 0.268941], abs=1e-6)
    teacher, student = torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2)
    p = torch.tensor([0.731059, 0.268941], dtype=torch.float64)
    assert float(divergence(teacher, student, 2.0)) == pytest.approx(float((p * (p * 2).log()).sum()), abs=1e-6)


_LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=3, max_size=3)


@given(teacher=_LOGITS, student=_LOGITS, temperature=st.floats(0.5, 10), shift=st.floats(-5, 5))
def test_the_divergence_is_0_for_equal_outputs_and_never_negative(
    teacher: list[float], student: list[float], temperature: float, shift: float
) -> None:
    a, b = torch.tensor([teacher]).double(), torch.tensor([student]).double()
    assert float(divergence(a, b, temperature)) >= -1e-12
    assert float(divergence(a, a + shift, temperature)) == pytest.approx(0, abs=1e-9)


def test_one_channel_is_two_classes_with_a_background_of_0() -> None:
    a, b = torch.randn(2, 2, 1, 4, 4, generator=torch.Generator().manual_seed(1)).unbind(0)
    zero = torch.zeros_like(a)
    assert torch.equal(divergence(a, b, 3), divergence(torch.cat([zero, a], 1), torch.cat([zero, b], 1), 3))
    assert float(divergence(a, b, 3)) > 0


def test_outputs_without_classes_are_refused() -> None:
    with pytest.raises(UsageError, match="distillation compares outputs"):
        divergence(torch.zeros(4), torch.zeros(4), 1)
    with pytest.raises(UsageError, match=r"not \(2, 3\) with \(2, 4\)"):
        divergence(torch.zeros(2, 3), torch.zeros(2, 4), 1)


@pytest.mark.parametrize(
    ("student", "teacher", "data"),
    [
        (network(1), network(2), points(60)),
        (segmenter(), nn.Conv2d(1, 2, 1), pixels(12)),
    ],
)
def test_the_student_approaches_the_teacher(
    student: nn.Module, teacher: nn.Module, data: torch.utils.data.TensorDataset
) -> None:
    x, _ = data.tensors
    told = payload(teacher)

    def apart() -> float:
        with torch.no_grad():
            return float(divergence(teacher.eval()(x), student.eval()(x), 1.0))

    before = apart()
    distill(student, data, settings(1e-2, epochs=60), DistillOptions(), teacher=teacher, context=RUN)
    assert apart() < 0.2 * before
    assert payload(teacher) == told


def test_an_equal_student_does_not_change_and_labels_are_not_read() -> None:
    same = network(2).eval()
    dropout = same.get_submodule("3")
    assert isinstance(dropout, nn.Dropout)
    dropout.p = 0.0
    before = payload(same)
    result = distill(same, points(), settings(1e-9), DistillOptions(), teacher=network(2), context=RUN)
    assert result.loss == pytest.approx(0, abs=1e-7)
    assert np.allclose(np.frombuffer(before, "f4"), np.frombuffer(payload(same), "f4"), atol=1e-7)
    students = [network(), network()]
    for student, data in zip(students, (points(), relabelled(points())), strict=True):
        distill(student, data, settings(), DistillOptions(), teacher=network(2), context=RUN)
    assert payload(students[0]) == payload(students[1])
