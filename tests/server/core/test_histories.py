"""Histories that the simulator found: each once ended in a broken promise or in no end at all."""

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


def test_two_who_decline_do_not_swap_places_for_ever() -> None:
    f = Federation(config(plan={"min_clients": 2, "participation": 0.5, "quorum": 1.0}))
    f.join("a", "b")
    [first] = [s.client for s in f.round.assignments]
    [second] = {"a", "b"} - {first}
    decline(f, first)
    assert [s.client for s in f.round.assignments] == [second]
    decline(f, second)
    assert f.round.phase is RoundPhase.COLLECTING


def test_who_declined_is_asked_again_where_nobody_else_can() -> None:
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


def test_a_small_share_of_participants_does_not_keep_a_regular_round_from_closing() -> None:
    f = trained(plan={"min_clients": 4, "participation": 0.25}, forgetting={"min_retained": 2})
    ticket = next(f.file(name) for name in EVERYONE if f.state.members[name].first_round)
    f.answer_evaluation(0.8)
    assert sum(not s.ticket for s in f.round.assignments) == 2
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(ticket.id).state is TicketState.APPLIED


def test_a_reset_whose_reason_was_withdrawn_does_not_happen() -> None:
    f = trained()
    f.apply(replace(f.state, paused=True))
    filed = [f.file(name) for name in EVERYONE]
    f.apply(replace(f.state, paused=False))
    assert (f.round.kind, f.round.phase) == (RoundKind.RESET, RoundPhase.FOLDING)
    f.apply(replace(f.state, paused=True))
    f.apply(tickets.withdraw(f.state, "a", filed[0].id, f.now)[0])
    assert f.state.round is None
    assert f.state.version == 2


def test_a_reset_under_way_is_not_overtaken_by_the_deadline() -> None:
    """It needs no client any more: failing the requests now would undo the model for nobody."""
    f = trained(plan={"min_clients": 4, "absent_seconds": 60})
    f.apply(replace(f.state, paused=True))
    filed = [f.file(name) for name in EVERYONE]
    f.apply(replace(f.state, paused=False))
    assert (f.round.kind, f.round.phase) == (RoundKind.RESET, RoundPhase.FOLDING)
    # The server was down for so long, and nobody is there.
    f.wait(f.config.forgetting.deadline_days * 86400 + 61)
    assert {f.ticket(t.id).state for t in filed} == {TicketState.PENDING}
    f.commit()
    assert {applied(f.ticket(t.id)).method for t in filed} == {"reset"}


def test_a_request_for_everything_that_takes_over_one_for_samples_keeps_the_announced_count() -> None:
    """The client learns of the step later; until then it trains on what it announced."""
    f = trained(plan={"min_clients": 2, "absent_seconds": 60})
    f.wait(61, "a", "b", "c")
    samples = f.file("d", scope="samples", forget_samples=4, retain_samples=6)
    f.file("d", key="all")
    assert f.ticket(samples.id).state is TicketState.WITHDRAWN
    assert f.state.members["d"].samples == 6


def test_who_is_wholly_forgotten_leaves_no_request_behind_that_can_only_fail() -> None:
    f = trained(plan={"min_clients": 4, "absent_seconds": 60})
    samples = f.file("b", scope="samples", forget_samples=4, retain_samples=6)
    f.answer_evaluation(0.8)
    everything = f.file("b", key="all", mode="special")
    f.apply(rounds.decline(f.state, "b", "b/forget", "out of memory", f.now))
    # The first waits for its next attempt, so the second is served before it.
    assert f.ticket(samples.id).state is TicketState.PENDING
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(everything.id).state is TicketState.APPLIED
    assert f.ticket(samples.id).state is TicketState.WITHDRAWN
    assert everything.id in f.ticket(samples.id).history[-1].note


def test_a_regular_round_does_not_go_on_alone_when_all_others_ask_meanwhile() -> None:
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


def test_another_request_for_as_many_samples_is_other_training() -> None:
    """The client answers a known training id from memory: the rest of one request is not the rest of another."""
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
