"""Rounds that the disk has no space for."""

from __future__ import annotations

from dataclasses import replace

from puf_server.core import scheduler
from puf_server.core.state.presence import DiskSpace
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import TicketState
from tests.server.core.builders import Federation, config


def with_disk(f: Federation, free: int) -> None:
    f.presence = replace(f.presence, disk=DiskSpace(free=free, update=100))
    f.apply(f.state)


def small() -> Federation:
    return Federation(config(plan={"min_clients": 3, "start_clients": 3}))


def test_a_round_needs_space_for_its_updates_and_its_model() -> None:
    f = small()
    with_disk(f, 399)
    f.join("a", "b", "c")
    assert f.state.round is None
    reason = scheduler.waiting_for(f.state, f.presence, f.config, f.now)
    assert "round 1 is not opened" in reason
    assert "make room" in reason
    with_disk(f, 400)
    assert len(f.round.assignments) == 3
    assert scheduler.lacks_space(f.state, f.presence, f.config, f.now) == ""


def test_rounded_steps_need_space_for_two_more_files() -> None:
    assert DiskSpace(free=0, update=100).needed(3) == 400
    assert DiskSpace(free=0, update=100, beside=2).needed(3) == 600


def test_an_open_round_goes_on_without_space() -> None:
    f = small()
    f.join("a", "b", "c")
    with_disk(f, 0)
    f.submit_all()
    f.commit()
    assert f.state.version == 1
    assert f.state.round is None


def test_a_request_waits_for_space_and_keeps_its_state() -> None:
    f = small()
    f.join("a", "b", "c", "d")
    f.train()
    with_disk(f, 0)
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    assert f.state.round is None
    waiting = f.ticket(ticket.id)
    assert (waiting.state, waiting.attempts) == (TicketState.SCHEDULED, 0)
    assert "is not opened" in scheduler.waiting_for(f.state, f.presence, f.config, f.now)
    with_disk(f, 1000)
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(ticket.id).applied is not None
