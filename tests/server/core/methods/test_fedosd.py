"""FedOSD: directions at a right angle to retained updates, and recovery that does not go back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_server.core.methods.blocks import UpdateBlock
from puf_server.core.methods.fedosd import away_from, orthogonal
from puf_server.core.methods.products import Products
from puf_server.core.state.rounds import CombineRule, RoundKind
from puf_server.core.state.tickets import TicketState
from tests.server.core.test_methods import trained
from tests.tickets import applied

Vectors = Mapping[str, tuple[float, ...]]


def products(vectors: Vectors) -> Products:
    rows = np.array(list(vectors.values()), np.float64)
    return Products(tuple(vectors), tuple(tuple(float(x) for x in row) for row in rows @ rows.T))


def update(client: str, samples: int = 1, *, target: bool = False) -> UpdateBlock:
    return UpdateBlock(client=client, samples=samples, u=None, target=target)


def total(vectors: Vectors, factors: Mapping[str, float]) -> list[float]:
    found: list[float] = sum(f * np.array(vectors[name]) for name, f in factors.items()).tolist()  # type: ignore[union-attr]
    return found


def test_the_direction_is_at_a_right_angle_and_as_long_as_the_targets_update() -> None:
    vectors = {"a/main": (2.0, 0.0, 0.0), "u/main": (3.0, 4.0, 0.0)}
    factors = orthogonal([update("a"), update("u", target=True)], products(vectors), 1.0)
    # g = (3, 4, 0) loses its part along a: (0, 4, 0), then has the length 5 again.
    assert total(vectors, factors) == pytest.approx([0, 5, 0])
    assert factors == pytest.approx({"u/main": 1.25, "a/main": -1.875})
    assert total(vectors, orthogonal([update("a"), update("u", target=True)], products(vectors), 2.0))[1] == 10


def test_several_targets_count_by_samples() -> None:
    vectors = {"a/main": (0.0, 1.0), "u/main": (1.0, 0.0), "v/main": (5.0, 7.0)}
    factors = orthogonal([update("a"), update("u", 3, target=True), update("v", 1, target=True)], products(vectors), 1)
    g = np.array([2.0, 1.75])
    assert total(vectors, factors) == pytest.approx([float(np.linalg.norm(g)), 0])


def test_dependent_retained_updates_are_allowed() -> None:
    vectors = {"a/main": (1.0, 0.0), "b/main": (2.0, 0.0), "u/main": (1.0, 1.0)}
    factors = orthogonal([update("a"), update("b"), update("u", target=True)], products(vectors), 1.0)
    assert total(vectors, factors) == pytest.approx([0, 2**0.5])


def test_a_target_that_the_others_cover_moves_nothing() -> None:
    vectors = {"a/main": (1.0, 0.0), "u/main": (3.0, 0.0)}
    assert set(orthogonal([update("a"), update("u", target=True)], products(vectors), 1.0).values()) == {0.0}


def test_without_retained_updates_the_targets_update_is_the_direction() -> None:
    vectors = {"u/main": (3.0, 4.0)}
    assert orthogonal([update("u", target=True)], products(vectors), 0.5) == {"u/main": 0.5}


@given(st.lists(st.tuples(*[st.integers(-3, 3)] * 5), min_size=4, max_size=4))
def test_the_direction_never_opposes_a_retained_client(rows: list[tuple[int, ...]]) -> None:
    names = ("a/main", "b/main", "c/main", "u/main")
    vectors = dict(zip(names, rows, strict=True))
    updates = [update(n[0], target=n[0] == "u") for n in names]
    d = np.array(total(vectors, orthogonal(updates, products(vectors), 1.0)))
    assert float(np.linalg.norm(d)) == pytest.approx(float(np.linalg.norm(vectors["u/main"]))) or not d.any()
    for name in names[:3]:
        assert abs(float(d @ vectors[name])) <= 1e-6


def test_recovery_removes_the_part_along_the_way_and_keeps_the_length() -> None:
    # a = w - w_before = (0, 2).
    vectors = {"a/main": (3.0, 4.0), "b/main": (1.0, 0.0), "before": (0.0, 2.0)}
    factors = away_from("before", [update("a", 3), update("b", 1)], products(vectors))
    # Update a becomes (3, 0) and then (5, 0); update b stays.
    assert total(vectors, factors) == pytest.approx([0.75 * 5 + 0.25 * 1, 0.0])
    along = {"a/main": (0.0, 4.0), "before": (0.0, 2.0)}
    assert total(along, away_from("before", [update("a")], products(along))) == [0.0, 0.0]
    at_it = {"a/main": (0.0, 4.0), "before": (0.0, 0.0)}
    assert away_from("before", [update("a", 2)], products(at_it)) == {"before": 0.0, "a/main": 1.0}


@pytest.mark.parametrize("project", ["true", "false"])
def test_rounds_and_recovery_are_planned_with_inner_products(project: str) -> None:
    f = trained(method="fedosd", method_options={"rounds": "2", "project": project}, blind_recovery_rounds=1)
    before = f.state.version
    ticket = f.file("b")
    for _ in range(2):
        asked = {a.client: a.routine for a in f.round.assignments}
        assert asked == {"a": "train", "b": "doubt", "c": "train", "d": "train"}
        assert f.round.step.combine.rule == CombineRule.LINEAR
        f.run_round(RoundKind.UNLEARN)
    # In recovery the method asks for the product of each update with the way from the model before.
    combine = f.round.step.combine
    if project == "true":
        assert (combine.rule, combine.others, f.round.method) == (CombineRule.LINEAR, {"before": before}, "fedosd")
    else:
        assert combine.rule == CombineRule.FOLD
    f.run_round(RoundKind.RECOVER)
    done = f.ticket(ticket.id)
    assert (done.state, applied(done).recovery_rounds) == (TicketState.COMPLETED, 1)


def test_a_client_that_replaces_another_in_recovery_gets_the_same_work() -> None:
    """A method may ask for a routine of its own in recovery."""
    f = trained(method="fedosd", method_options={"rounds": "1"}, blind_recovery_rounds=1)
    f.file("b")
    f.run_round(RoundKind.UNLEARN)
    changed = tuple(
        replace(a, routine="own:routine", options={"x": 1.0}) for a in f.round.assignments if a.client != "d"
    )
    f.apply(replace(f.state, round=replace(f.round.with_assignments(changed), deadline_at=f.now + 1)))
    f.wait(f.config.plan.absent_seconds + 1, "d")
    f.apply(f.state)
    assert {(a.client, a.routine) for a in f.round.assignments} == {("c", "own:routine"), ("d", "own:routine")}
