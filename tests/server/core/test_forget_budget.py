"""How much may be forgotten without operator approval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from puf_common.errors import TooMuch
from puf_server.core import scheduler, tickets
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import TicketState
from tests.server.core.builders import Federation, config

HOUR, DAY = 3600.0, 86400.0


def trained(names: str = "abcd", **changes: Any) -> Federation:
    f = Federation(config(**{"plan": {"min_clients": len(names)}} | changes))
    f.join(*names)
    f.train()
    return f


def test_requests_beyond_the_budget_wait_for_operator_approval() -> None:
    f = trained(limits={"forget_share": 0.5})
    first, second, third = (f.file(name) for name in "abc")
    assert [bool(t.on_hold) for t in (first, second, third)] == [False, False, True]
    assert (third.request.weight, third.state) == (10, TicketState.PENDING)
    assert "75%" in (third.on_hold or "")
    assert third.id in scheduler.waiting_for(f.state, f.presence, f.config, f.now)
    f.answer_evaluation(0.8)
    for ticket in (first, second):
        assert f.run_round(RoundKind.UNLEARN).tickets == (ticket.id,)
    assert f.ticket(third.id).state is TicketState.PENDING
    # Its client does not train.
    assert "c" in f.state.kept_out()
    f.answer_evaluation(0.9)
    f.apply(tickets.approve(f.state, third.id, f.now))
    assert f.ticket(third.id).state is TicketState.SCHEDULED


def test_old_and_withdrawn_requests_do_not_count_for_the_budget() -> None:
    f = trained(limits={"forget_share": 0.3, "forget_days": 7.0})
    first = f.file("a")
    assert f.file("b").on_hold
    state, _ = tickets.withdraw(f.state, "b", f.state.tickets["t-1"].id, f.now)
    state, _ = tickets.withdraw(state, "a", first.id, f.now) if first.state is TicketState.PENDING else (state, first)
    f.state = state
    f.now += 8 * DAY
    f.beat(*"abcd")
    assert not f.file("c", key="later").on_hold


def test_a_request_for_samples_counts_these_samples_only() -> None:
    f = trained("ab", limits={"forget_share": 0.2})
    ticket = f.file("a", scope="samples", forget_samples=4, retain_samples=6)
    assert (ticket.request.weight, ticket.on_hold) == (4, None)
    assert f.file("b").on_hold


def test_a_request_of_the_operator_needs_no_approval() -> None:
    f = trained("ab", limits={"forget_share": 0.1})
    assert not f.file("a", by="operator").on_hold


def test_requests_of_all_clients_reset_the_model_only_after_operator_approval() -> None:
    f = trained("ab", limits={"forget_share": 0.5})
    f.file("a")
    last = f.file("b")
    assert last.on_hold
    f.answer_evaluation(0.8)
    assert f.state.round is None
    f.apply(tickets.approve(f.state, last.id, f.now))
    assert f.round.kind is RoundKind.RESET


def test_a_client_that_never_contributed_is_not_counted() -> None:
    f = trained("ab", limits={"forget_share": 0.1})
    f.join("c")
    assert not f.file("c").on_hold


def test_requests_per_hour_are_bounded_withdrawn_ones_included() -> None:
    f = trained("ab", limits={"tickets_per_hour": 2}, forgetting={"measure_seconds": 0.0})
    f.state = replace(f.state, paused=True)
    for key in ("one", "two"):
        ticket = f.file("a", key=key)
        f.state = tickets.withdraw(f.state, "a", ticket.id, f.now)[0]
    with pytest.raises(TooMuch, match="within an hour"):
        f.file("a", key="three")
    # Other clients, the operator, and repeated requests are not limited.
    f.file("b")
    f.now += HOUR + 1
    f.beat("a")
    f.file("a", key="three")
