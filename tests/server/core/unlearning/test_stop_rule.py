"""The stop rule of recovery, with worked numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from puf_server.core.state.jobs import Recovery
from puf_server.core.state.measurements import Sums
from puf_server.core.state.tickets import RecoveryEnd
from puf_server.core.unlearning.stop_rule import change, ended, sentence


def scores(*each: float, samples: int = 100) -> dict[str, Sums]:
    return {f"c{i}": Sums(samples=samples, loss_sum=1.0, score_sum=samples * score) for i, score in enumerate(each)}


def recovery(before: dict[str, Sums], *course: dict[str, Sums]) -> Recovery:
    """A recovery that was evaluated right after unlearning and after each round since."""
    return Recovery(
        evaluators=tuple(before),
        before=before,
        started_at=0.0,
        rounds=len(course) - 1,
        latest=course[-1],
        course=course,
    )


def test_changes_are_compared_client_by_client() -> None:
    found = change(scores(0.8, 0.7, 0.6), scores(0.7, 0.7, 0.7))
    assert found is not None
    # Gains -0.1, 0, 0.1: mean 0, standard error sqrt((0.01 + 0.01) / 9 * 3 / 2).
    assert found.gain == pytest.approx(0.0)
    assert found.error == pytest.approx((0.02 / 9 * 1.5) ** 0.5)


def test_with_few_clients_the_error_is_that_of_a_share() -> None:
    found = change(scores(0.8), scores(0.6))
    assert found is not None
    assert found.error == pytest.approx((0.7 * 0.3 / 100) ** 0.5)


def test_clients_that_measured_once_are_left_out() -> None:
    found = change(scores(0.8, 0.4), scores(0.6))
    assert found is not None
    assert (found.before, found.after) == (0.8, 0.6)
    assert change(scores(0.8), {}) is None


def test_equal_by_share_holds_at_once_and_equal_by_error_after_two_rounds() -> None:
    before = scores(0.80, 0.80, 0.80, 0.80)
    near = scores(0.70, 0.82, 0.74, 0.80)
    assert ended(recovery(before, scores(0.79, 0.79, 0.79, 0.79)), 0.98) is RecoveryEnd.EQUAL
    assert ended(recovery(before, near, near), 0.98) is None
    # Mean 0.765, 3.5 points below, with a standard error of 2.7 points.
    far = recovery(before, near, near, near)
    assert ended(far, 0.98) is None
    nearer = scores(0.72, 0.82, 0.74, 0.84)
    assert ended(recovery(before, near, near, nearer), 0.98) is RecoveryEnd.EQUAL


def test_a_plateau_needs_three_rounds_without_gain() -> None:
    before = scores(0.9, 0.9, 0.9, 0.9)
    low, level = scores(0.5, 0.5, 0.5, 0.5), scores(0.60, 0.62, 0.58, 0.60)
    again = scores(0.61, 0.60, 0.59, 0.60)
    assert ended(recovery(before, low, level, again), 0.98) is None
    # Three rounds ago the score was 10 points lower: it still rose.
    assert ended(recovery(before, low, level, again, level), 0.98) is None
    assert ended(recovery(before, level, again, level, again), 0.98) is RecoveryEnd.PLATEAU


def test_a_falling_score_is_a_plateau_too() -> None:
    before = scores(0.9, 0.9, 0.9)
    course = [scores(x, x - 0.01, x + 0.01) for x in (0.6, 0.59, 0.58, 0.57)]
    assert ended(recovery(before, *course), 0.98) is RecoveryEnd.PLATEAU


def test_the_ticket_says_how_recovery_ended_and_by_how_much() -> None:
    done = recovery(scores(0.8, 0.8, 0.8), scores(0.7, 0.8, 0.75))
    said = sentence(RecoveryEnd.PLATEAU, done)
    assert "no longer rises (75.0%, before 80.0%; standard error 2.9 points)" in said
    assert sentence(RecoveryEnd.RESET, done) == "the model went back to its initial weights"
    assert sentence(RecoveryEnd.NOT_MEASURED, replace(done, before={})) == "recovery could not be measured"
