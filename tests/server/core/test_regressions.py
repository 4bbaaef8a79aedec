"""Regressions that the simulator found."""

from __future__ import annotations

from dataclasses import replace

from puf_server.core import assignments, rounds, tickets
from puf_server.core.state.rounds import RoundKind, RoundPhase
from puf_server.core.state.tickets import TicketState
from tests.server.core.builders import Federation, config
from tests.tickets import applied

EVERYONE = ("a", "b", "c", "d")


def trained(**changes: object) -> Federation:
    f = Federation(config(**changes))
    f.join(*EVERYONE)
    f.train()
    return f


def decline(f: Federation, name: str) -> None:
    f.apply(rounds.decline(f.state, name, f"{name}/main", "out of memory", f.now))


def test_two_clients_that_decline_do_not_replace_each_other_without_end() -> None:
    f = Federation(config(plan={"min_clients": 2, "participation": 0.5, "quorum": 1.0}))
    f.join("a", "b")
    [first] = [s.client for s in f.round.assignments]
    [second] = {"a", "b"} - {first}
    decline(f, first)
    assert [s.client for s in f.round.assignments] == [second]
    decline(f, second)
    assert f.round.phase is RoundPhase.COLLECTING


def test_a_client_that_declined_is_asked_again_if_no_other_can_replace_it() -> None:
    f = Federation(config(plan={"quorum": 1.0, "absent_seconds": 60}))
    f.join("a", "b")
    f.submit("a")
    decline(f, "b")
    f.wait(30, "a", "b")
    assert "b/main" in f.round.declined
    f.wait(30, "a", "b")
    assert (f.round.declined, f.round.attempt, set(f.round.received)) == ({}, 1, {"a/main"})
    f.submit("b")
    assert f.round.phase is RoundPhase.FOLDING


def test_a_regular_round_closes_with_a_small_share_of_participants() -> None:
    f = trained(plan={"min_clients": 4, "participation": 0.25}, forgetting={"min_retained": 2})
    ticket = next(f.file(name) for name in EVERYONE if f.state.members[name].first_round)
    f.answer_evaluation(0.8)
    assert sum(not s.ticket for s in f.round.assignments) == 2
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(ticket.id).state is TicketState.APPLIED


def test_a_reset_ends_when_its_request_is_withdrawn() -> None:
    f = trained()
    f.apply(replace(f.state, paused=True))
    filed = [f.file(name) for name in EVERYONE]
    f.apply(replace(f.state, paused=False))
    assert (f.round.kind, f.round.phase) == (RoundKind.RESET, RoundPhase.FOLDING)
    f.apply(replace(f.state, paused=True))
    f.apply(tickets.withdraw(f.state, "a", filed[0].id, f.now)[0])
    assert f.state.round is None
    assert f.state.version == 2


def test_a_reset_in_progress_is_not_ended_by_the_deadline() -> None:
    """The reset needs no client. Failing the requests would reset the model without a reason."""
    f = trained(plan={"min_clients": 4, "absent_seconds": 60})
    f.apply(replace(f.state, paused=True))
    filed = [f.file(name) for name in EVERYONE]
    f.apply(replace(f.state, paused=False))
    assert (f.round.kind, f.round.phase) == (RoundKind.RESET, RoundPhase.FOLDING)
    # The server was down for that long, and no client is alive.
    f.wait(f.config.forgetting.deadline_days * 86400 + 61)
    assert {f.ticket(t.id).state for t in filed} == {TicketState.PENDING}
    f.commit()
    assert {applied(f.ticket(t.id)).method for t in filed} == {"reset"}


def test_taking_over_a_request_for_samples_keeps_the_announced_count() -> None:
    """The client learns of it later. Until then it trains on the announced samples."""
    f = trained(plan={"min_clients": 2, "absent_seconds": 60})
    f.wait(61, "a", "b", "c")
    samples = f.file("d", scope="samples", forget_samples=4, retain_samples=6)
    f.file("d", key="all")
    assert f.ticket(samples.id).state is TicketState.WITHDRAWN
    assert f.state.members["d"].samples == 6


def test_forgetting_a_whole_client_withdraws_its_other_requests() -> None:
    f = trained(plan={"min_clients": 4, "absent_seconds": 60})
    samples = f.file("b", scope="samples", forget_samples=4, retain_samples=6)
    f.answer_evaluation(0.8)
    everything = f.file("b", key="all", mode="special")
    f.apply(rounds.decline(f.state, "b", "b/forget", "out of memory", f.now))
    # The first waits for its next attempt, so the second is served first.
    assert f.ticket(samples.id).state is TicketState.PENDING
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(everything.id).state is TicketState.APPLIED
    assert f.ticket(samples.id).state is TicketState.WITHDRAWN
    assert everything.id in f.ticket(samples.id).history[-1].note


def test_a_regular_round_ends_when_all_other_clients_ask_to_be_forgotten() -> None:
    f = Federation(config(plan={"min_clients": 2}))
    f.join("a", "b")
    f.train()
    first = f.file("a")
    f.answer_evaluation(0.8)
    f.submit("a")
    second = f.file("b")
    assert f.round.kind is RoundKind.RESET
    f.commit()
    assert {applied(f.ticket(t.id)).method for t in (first, second)} == {"reset"}


def test_another_request_for_as_many_samples_has_another_training_id() -> None:
    """A client reuses the update of a known training id, but another request leaves other samples."""
    f = trained(plan={"min_clients": 4, "absent_seconds": 60})
    seen = []
    for key in ("first", "second"):
        ticket = f.file("b", key=key, scope="samples", forget_samples=4, retain_samples=6)
        if f.state.evaluation is not None:
            f.answer_evaluation(0.8)
        task = assignments.work_for(f.state, f.config, "b", f.state.members["b"].session, f.now)
        assert isinstance(task, assignments.Train)
        assert task.assignment.part == "retain"
        seen.append(assignments.training_id(task))
        f.apply(rounds.decline(f.state, "b", "b/retain", "out of memory", f.now))
        f.apply(tickets.withdraw(f.state, "b", ticket.id, f.now)[0])
    assert seen[0] != seen[1]
