"""A moved clock: durations go on, dates stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from puf_server.core import clock_changes, roster
from puf_server.core.state.rounds import RoundKind, RoundPhase
from puf_server.core.state.tickets import TicketState
from tests.server.core.builders import Federation, config

DAY = 86400.0


def moved(f: Federation, seconds: float) -> None:
    """What the engine does when its clock is moved."""
    f.now += seconds
    f.presence = f.presence.moved(seconds)
    f.apply(clock_changes.moved(f.state, seconds))


@pytest.mark.parametrize("seconds", [40 * DAY, -40 * DAY])
def test_the_deadline_of_a_round_is_as_far_away_as_before(seconds: float) -> None:
    f = Federation(config(plan={"deadline_seconds": 100, "quorum": 0.5}))
    f.join("a", "b")
    f.submit("a")
    f.wait(60, "a", "b")
    moved(f, seconds)
    assert f.round.phase is RoundPhase.COLLECTING
    assert roster.worker_alive(f.presence, "b", f.config, f.now)
    f.wait(39, "a", "b")
    assert f.round.phase is RoundPhase.COLLECTING
    f.wait(1, "a", "b")
    assert f.round.phase is RoundPhase.FOLDING


@pytest.mark.parametrize("seconds", [40 * DAY, -40 * DAY])
def test_a_silent_worker_stays_as_silent_as_it_was(seconds: float) -> None:
    f = Federation(config(plan={"absent_seconds": 60}))
    f.join("a", "b")
    f.wait(50, "a")
    moved(f, seconds)
    assert roster.worker_alive(f.presence, "b", f.config, f.now)
    f.wait(11, "a")
    assert not roster.worker_alive(f.presence, "b", f.config, f.now)


def test_the_deadline_of_a_request_is_a_date_and_stays() -> None:
    f = Federation(config(plan={"absent_seconds": 60}))
    f.join("a", "b", "c")
    f.train()
    ticket = f.file("a")
    moved(f, 40 * DAY)
    assert f.ticket(ticket.id).deadline_at == ticket.deadline_at
    # Its client is alive: it is overdue and still served.
    assert f.ticket(ticket.id).open


def test_a_pause_before_the_next_attempt_is_as_long_as_before() -> None:
    f = Federation(config())
    f.join("a", "b", "c")
    f.train()
    ticket = f.file("a")
    waiting = replace(f.ticket(ticket.id), state=TicketState.PENDING, not_before=f.now + 90)
    state = replace(f.state, job=None, round=None, evaluation=None).with_ticket(waiting)
    after = clock_changes.moved(state, -DAY).tickets[ticket.id]
    assert after.not_before == f.now - DAY + 90


def test_a_ticket_whose_deadline_lies_between_two_times_is_named() -> None:
    f = Federation(config())
    f.join("a", "b", "c")
    f.train()
    ticket = f.file("a")
    assert clock_changes.deadline_between(f.state, f.now, f.now + 29 * DAY) == ""
    assert clock_changes.deadline_between(f.state, f.now, f.now + 31 * DAY) == ticket.id
    assert clock_changes.deadline_between(f.state, f.now + 31 * DAY, f.now + 40 * DAY) == ""


@pytest.mark.parametrize("seconds", [40 * DAY, -40 * DAY])
def test_a_target_has_the_same_time_for_its_measurements(seconds: float) -> None:
    f = Federation(config(forgetting={"measure_seconds": 100}))
    f.join("a", "b", "c")
    f.train()
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    f.wait(60, "b", "c")
    moved(f, seconds)
    assert f.ticket(ticket.id).open
    f.wait(39, "b", "c")
    assert f.ticket(ticket.id).open
    f.wait(1, "b", "c")
    assert f.ticket(ticket.id).state is TicketState.COMPLETED
