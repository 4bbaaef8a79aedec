"""FedAU: mixing of heads, and its step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_client.routines import aux_head
from puf_client.routines.inputs import options_from
from puf_common.errors import InvalidArgument, NotNow
from puf_common.tensors.manifest import Manifest, TensorSpec
from puf_server.core import methods
from puf_server.core.methods.blocks import TensorBlock, UpdateBlock
from puf_server.core.methods.fedau import FedauOptions, mix_heads
from puf_server.core.state.rounds import Combine, RoundKind
from tests.server.core.builders import Federation, config
from tests.tickets import applied

HEAD, AUXILIARY = np.array([1, 2], "f4"), np.array([-1, 0], "f4")


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.9, (-0.8, 0.2)), (0.96, (-0.92, 0.08)), (0.04, (0.92, 1.92)), (0.0, (1, 2))]
)
def test_one_target(alpha: float, expected: tuple[float, float]) -> None:
    assert mix_heads(HEAD, [AUXILIARY], alpha) == pytest.approx(expected)


def test_two_targets_have_the_same_weight() -> None:
    assert mix_heads(HEAD, [AUXILIARY, np.array([3, -4], "f4")], 0.9) == pytest.approx([1.0, -1.6])
    with pytest.raises(InvalidArgument, match="no auxiliary head"):
        mix_heads(HEAD, [], 0.9)


def test_the_auxiliary_heads_have_most_of_the_weight() -> None:
    assert FedauOptions().alpha_aux == 0.96
    assert mix_heads(HEAD, [AUXILIARY], FedauOptions().alpha_aux) == pytest.approx([-0.92, 0.08])


@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4))
def test_with_alpha_0_the_head_keeps_its_bits(values: list[float]) -> None:
    head, auxiliary = np.array(values[:2], "f4"), np.array(values[2:], "f4")
    assert mix_heads(head, [auxiliary], 0.0).astype("f4").tobytes() == head.tobytes()


@given(alpha=st.floats(0, 1))
def test_logits_are_linear_in_alpha(alpha: float) -> None:
    features = np.array([[0.5, -1.0], [2.0, 3.0]])
    logits = [features @ mix_heads(HEAD, [AUXILIARY], a) for a in (0.0, alpha, 1.0)]
    assert logits[1] == pytest.approx((1 - alpha) * logits[0] + alpha * logits[2])


def test_the_clients_routine_understands_the_methods_options() -> None:
    assert options_from(aux_head.AuxHeadOptions, FedauOptions().routine()) == aux_head.AuxHeadOptions()


NET = Manifest((TensorSpec("stem.weight", "f32", (2, 1)), TensorSpec("head.weight", "f32", (1, 2))))


@given(alpha=st.floats(0, 1))
def test_the_backbone_keeps_its_bits(alpha: float) -> None:
    rule = methods.named("fedau", {"alpha_aux": repr(alpha)}).rule(Combine(rule="mix"), NET, ())
    stem, head = NET.tensors
    untouched = TensorBlock(
        tensor=stem, parameter=0, w=HEAD, others={}, updates=[UpdateBlock(client="u", samples=1, u=None)]
    )
    assert rule(untouched) is HEAD
    # An update is a difference: the trained head is the model's head plus the difference.
    update = UpdateBlock(client="u", samples=1, u=AUXILIARY - HEAD)
    mixed = rule(TensorBlock(tensor=head, parameter=1, w=HEAD, others={}, updates=[update]))
    assert mixed == pytest.approx((1 - alpha) * HEAD + alpha * AUXILIARY, abs=1e-6)


def federation(task: str = "classification") -> Federation:
    f = Federation(config(task=task, forgetting={"method": "fedau"}))
    f.join("a", "b", "c", holdout=0)
    f.train()
    return f


def test_only_targets_work_and_send_their_heads() -> None:
    f = federation()
    f.file("b")
    [assignment] = f.round.assignments
    assert (assignment.client, assignment.routine, assignment.outputs, assignment.epochs, assignment.lr) == (
        "b",
        "aux_head",
        ("@head",),
        10.0,
        None,
    )
    f.run_round(RoundKind.UNLEARN)
    assert applied(f.state.tickets["t-0"]).method == "fedau"


def test_for_single_samples_a_target_uses_all_its_samples() -> None:
    f = federation()
    f.file("b", scope="samples", forget_samples=4, retain_samples=6)
    [assignment] = f.round.assignments
    assert (assignment.part, assignment.samples) == ("forget", 10)


def test_a_task_without_classes_is_refused() -> None:
    with pytest.raises(NotNow, match="for classification only"):
        federation("segmentation").file("b")
