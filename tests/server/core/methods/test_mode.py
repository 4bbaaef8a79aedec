"""MoDe: blending and its steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from puf_common.errors import NotNow
from puf_common.tensors.manifest import TensorSpec
from puf_server.core.methods.blocks import TensorBlock
from puf_server.core.methods.mode import ModeOptions, blend, permuted, phases
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import TicketState
from tests.server.core.builders import Federation, config
from tests.tickets import applied

M, DEGRADED = np.array([1, -1], "f4"), np.array([3, 1], "f4")


def test_the_worked_blend() -> None:
    assert blend(M, DEGRADED, 0.95) == pytest.approx([1.1, -0.9])


@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4))
def test_a_weight_of_0_or_1_gives_exactly_one_model(values: list[float]) -> None:
    a, b = np.array(values[:2], "f4"), np.array(values[2:], "f4")
    assert np.array_equal(blend(a, b, 1.0).astype("f4"), a)
    assert np.array_equal(blend(a, b, 0.0).astype("f4"), b)


@given(keep=st.floats(0, 1), times=st.integers(0, 12))
def test_repeated_blends_with_one_model_are_one_blend_with_the_power(keep: float, times: int) -> None:
    blended = M.astype("f8")
    for _ in range(times):
        blended = blend(blended, DEGRADED, keep)
    assert blended == pytest.approx(blend(M, DEGRADED, keep**times), abs=1e-12)


def test_after_six_blends_the_model_has_most_of_the_weight() -> None:
    assert ModeOptions().keep ** ModeOptions().degrade_rounds == pytest.approx(0.7351, abs=1e-4)


def test_degradation_is_in_the_first_rounds_of_guidance() -> None:
    one = ("degrade", "blend", "guide")
    assert phases(ModeOptions(degrade_rounds=2, rounds=3)) == ("fresh", *one, *one, "guide")
    assert phases(ModeOptions()).count("degrade") == 6
    assert phases(ModeOptions()).count("guide") == 10
    with pytest.raises(ValidationError, match="degrade_rounds 6 must be at most rounds 5"):
        ModeOptions(rounds=5)


def test_rates_of_guidance_are_the_papers_or_those_of_its_authors_code() -> None:
    assert ModeOptions().rates == (5e-4, 5e-4)
    assert ModeOptions(compat="author-code").rates == (0.1, 5e-4)
    assert ModeOptions(compat="author-code", lr_guide_target=0.01).rates == (0.01, 5e-4)


def test_the_degradation_model_is_another_draw_of_the_same_values() -> None:
    spec = TensorSpec("w", "f32", (400,))
    w = np.arange(400, dtype="f4")
    blocks = [TensorBlock(tensor=spec, parameter=0, w=w, others={}, updates=()) for _ in range(2)]
    deal = permuted(1)
    first, second = (deal(block) for block in blocks)
    assert sorted(first) == sorted(second) == w.tolist()
    assert not np.array_equal(first, w)
    assert not np.array_equal(first, second)
    again = permuted(1)
    assert np.array_equal(again(blocks[0]), first)
    buffer = TensorSpec("mean", "f32", (400,), "buffer")
    assert deal(TensorBlock(tensor=buffer, parameter=-1, w=w, others={}, updates=())) is w


def federation(**options: str) -> Federation:
    short = {"rounds": "2", "degrade_rounds": "1", **options}
    f = Federation(config(forgetting={"method": "mode", "method_options": short}))
    f.join("a", "b", "c", holdout=0)
    f.train()
    return f


def test_the_steps_of_a_request() -> None:
    f = federation()
    ticket = f.file("b")
    before = f.state.version
    assert (f.round.assignments, f.round.base, f.round.step.combine.rule) == ((), 0, "fresh")
    f.commit()
    assert f.state.models[3].status is ModelStatus.AUXILIARY
    assert (f.round.base, [(s.client, s.routine) for s in f.round.assignments]) == (3, [("a", "train"), ("c", "train")])
    assert f.round.lr == f.config.recipe.lr
    f.run_round(RoundKind.UNLEARN)
    assert f.state.models[3].status is ModelStatus.DELETED
    assert (f.round.base, f.round.step.combine.rule, f.round.step.combine.others) == (before, "blend", {"degraded": 4})
    f.commit()
    for last in (False, True):
        assert f.round.step.last == last
        told = {s.client: (s.routine, s.aux, s.lr) for s in f.round.assignments}
        assert told == {"a": ("train", None, 5e-4), "b": ("guide", 4, 5e-4), "c": ("train", None, 5e-4)}
        # The federation's model does not change before the last step.
        assert f.state.version == before
        f.run_round(RoundKind.UNLEARN)
    assert f.state.models[4].status is ModelStatus.DELETED
    assert applied(f.ticket(ticket.id)).method == "mode"


def test_guidance_needs_retained_clients() -> None:
    f = federation(rounds="1", degrade_rounds="0")
    ticket = f.file("b")
    f.commit()
    f.submit("b")
    f.wait(61, "b")
    assert f.ticket(ticket.id).state is TicketState.PENDING
    assert f.ticket(ticket.id).history[-1].note == "too few retained clients answered"


def test_guidance_for_single_samples_uses_all_samples() -> None:
    f = federation(rounds="1", degrade_rounds="0")
    f.file("b", scope="samples", forget_samples=4, retain_samples=6)
    f.commit()
    assert [(s.client, s.part, s.samples) for s in f.round.assignments] == [
        ("a", "main", 10),
        ("b", "forget", 10),
        ("c", "main", 10),
    ]


def test_a_task_without_classes_is_refused_by_mode() -> None:
    f = Federation(config(task="segmentation", forgetting={"method": "mode"}))
    f.join("a", "b", holdout=0)
    f.train()
    with pytest.raises(NotNow, match="for classification only, this federation's task is segmentation"):
        f.file("b")
