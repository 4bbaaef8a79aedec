"""The roster: clients on hold, limits, forgotten clients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from puf_common.errors import Forgotten, Mismatch, TooMuch
from puf_server.core import roster, scheduler, tickets
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import Scope, TicketState
from puf_server.core.unlearning import model_versions
from tests.server.core.builders import Federation, config


@pytest.mark.parametrize("order", ["abm", "mab"])
def test_a_client_that_announces_most_samples_waits_for_operator_approval(order: str) -> None:
    f = Federation(config(plan={"min_clients": 2, "start_clients": 3}))
    for name in order:
        f.join(name, samples=1000 if name == "m" else 10)
    assert f.state.members["m"].outweighs
    assert "clients on hold: m" in scheduler.waiting_for(f.state, f.presence, f.config, f.now)
    # The other clients continue.
    assert {s.client for s in f.round.assignments} == {"a", "b"}
    f.apply(roster.approve(f.state, "m", f.now))
    f.run_round(RoundKind.TRAIN)
    assert {s.client for s in f.round.assignments} == {"a", "b", "m"}


def test_two_clients_are_too_few_to_compare() -> None:
    f = Federation(config())
    f.join("a", samples=1)
    f.join("b", samples=1000)
    assert {s.client for s in f.round.assignments} == {"a", "b"}


def test_shares_are_compared_again_when_clients_come_and_go() -> None:
    f = Federation(config(plan={"min_clients": 2, "start_clients": 9}))
    f.join("a", "b", samples=10)
    f.join("m", samples=100)
    assert f.state.members["m"].outweighs
    f.join("c", samples=100)
    assert not f.state.members["m"].outweighs
    f.join("m", samples=1000)
    assert f.state.members["m"].outweighs


def test_the_number_of_clients_is_limited_and_members_may_join_again() -> None:
    f = Federation(config(limits={"max_clients": 2}))
    f.join("a", "b")
    with pytest.raises(TooMuch, match="2 clients"):
        f.join("c")
    f.join("a")


EVERYONE = ("a", "b", "c", "d")


def trained(**changes: object) -> Federation:
    f = Federation(config(**changes))
    f.join(*EVERYONE)
    f.train()
    return f


def test_a_forgotten_name_joins_again_only_after_readmission() -> None:
    f = trained()
    ticket = f.file("b")
    session = f.state.members["b"].session
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    with pytest.raises(Forgotten):
        f.join("b")
    with pytest.raises(Forgotten):
        roster.session_member(f.state, "b", session)
    member = f.state.members["b"]
    assert model_versions.may_fetch(f.state, f.config, member, 3, f.now).version == 3
    assert f.ticket(ticket.id).state is TicketState.COMPLETED
    f.apply(roster.readmit(f.state, "b", f.now))
    with pytest.raises(Forgotten, match="ask to rejoin"):
        f.join("b")
    f.join("b", instance="new", rejoin=True)
    assert f.state.members["b"].membership == 2
    assert f.state.members["b"].first_round == 0


def test_nothing_about_the_presence_of_a_forgotten_client_is_kept() -> None:
    f = trained()
    f.beat("a", "b", activity="training")
    f.file("b")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    assert f.state.members["b"].status is MemberStatus.FORGOTTEN
    assert "a" in f.presence.seen
    assert "b" not in {*f.presence.seen, *f.presence.activity}


def test_forgotten_samples_do_not_come_back_with_a_larger_count() -> None:
    f = Federation(config())
    f.join("a", "b", samples=10)
    f.train()
    ticket = f.file("a", scope=Scope.SAMPLES, forget_samples=4, retain_samples=6)
    for count in (10, 7):
        with pytest.raises(Mismatch, match=f"{ticket.id} it has 6"):
            f.join("a", samples=count)
    # Fewer samples, and the same ones again, are no growth.
    f.join("a", samples=3)
    f.join("a", samples=6)
    with pytest.raises(Mismatch, match="--added-samples 2"):
        f.join("a", samples=8, added=1)
    f.join("a", samples=8, added=2)
    f.join("a", samples=8)
    with pytest.raises(Mismatch, match="it has 8"):
        f.join("a", samples=9)


def test_a_withdrawn_request_gives_the_count_back() -> None:
    f = Federation(config(plan={"min_clients": 2, "absent_seconds": 60}))
    f.join("a", "b", samples=10)
    f.train()
    f.state = replace(f.state, paused=True)
    ticket = f.file("a", scope=Scope.SAMPLES, forget_samples=4, retain_samples=6)
    f.apply(tickets.withdraw(f.state, "a", ticket.id, f.now)[0])
    f.join("a", samples=10)
    # Without a request for samples, more data needs no declaration.
    f.join("a", samples=30)
    assert f.state.members["a"].samples == 30
