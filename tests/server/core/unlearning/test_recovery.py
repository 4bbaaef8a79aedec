"""Recovery after unlearning, and completion."""

from __future__ import annotations

from tests.server.core.builders import Federation, config
from tests.tickets import applied, outcome

from puf_server.core import clock_changes, tickets
from puf_server.core.state.measurements import Measurement, Sums
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import TicketState

EVERYONE = ("a", "b", "c", "d")


def trained(**changes: object) -> Federation:
    f = Federation(config(**changes))
    f.join(*EVERYONE)
    f.train()
    return f


def states(f: Federation, ticket_id: str) -> list[str]:
    return [step.state.value for step in f.ticket(ticket_id).history]


def test_requests_during_recovery_are_served_at_the_next_boundary_and_share_the_baseline() -> None:
    f = trained(plan={"min_clients": 4})
    first = f.file("a")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.2)
    second = f.file("b")
    assert f.round.kind is RoundKind.RECOVER
    assert "b" not in {s.client for s in f.round.assignments}
    f.run_round(RoundKind.RECOVER)
    assert f.round.kind is RoundKind.UNLEARN
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.79)
    assert f.ticket(first.id).state is f.ticket(second.id).state is TicketState.COMPLETED
    assert applied(f.ticket(second.id)).score_before == applied(f.ticket(first.id)).score_before


def test_recovery_without_success_completes_as_not_recovered() -> None:
    f = trained(forgetting={"max_recovery_rounds": 2, "measure_seconds": 0.0})
    ticket = f.file("a")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    for _ in range(2):
        f.answer_evaluation(0.5)
        f.run_round(RoundKind.RECOVER)
    f.answer_evaluation(0.5)
    assert (f.ticket(ticket.id).state, outcome(f.ticket(ticket.id)).recovered) == (TicketState.COMPLETED, False)


def test_without_hold_outs_recovery_has_a_fixed_length() -> None:
    f = Federation(config(plan={"min_clients": 4}, forgetting={"blind_recovery_rounds": 3, "measure_seconds": 0.0}))
    f.join(*EVERYONE, holdout=0)
    f.train()
    ticket = f.file("a")
    f.run_round(RoundKind.UNLEARN)
    for _ in range(3):
        f.run_round(RoundKind.RECOVER)
    done = f.ticket(ticket.id)
    assert (done.state, outcome(done).recovered, applied(done).recovery_rounds) == (TicketState.COMPLETED, None, 3)


def test_completion_waits_for_the_targets_measurements_for_a_limited_time() -> None:
    f = trained(forgetting={"measure_seconds": 60.0})
    ticket = f.file("b")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    assert f.ticket(ticket.id).state is TicketState.APPLIED
    sums = Sums(samples=10, loss_sum=1.0, score_sum=5.0)
    for version in (2, 3):
        f.apply(tickets.measure(f.state, "b", ticket.id, version, Measurement(forget=sums), f.now)[0])
    assert f.ticket(ticket.id).state is TicketState.COMPLETED
    g = trained(forgetting={"measure_seconds": 60.0})
    other = g.file("b")
    g.answer_evaluation(0.8)
    g.run_round(RoundKind.UNLEARN)
    g.answer_evaluation(0.8)
    g.wait(61, "a", "c", "d")
    assert g.ticket(other.id).state is TicketState.COMPLETED


def test_a_clock_that_is_set_back_does_not_make_completion_wait_for_the_targets_measurements() -> None:
    f = trained(forgetting={"measure_seconds": 60.0})
    ticket = f.file("b")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    back = -40 * 86400.0
    f.now += back
    f.presence = f.presence.moved(back)
    f.apply(clock_changes.moved(f.state, back))
    f.wait(61, "a", "c", "d")
    assert f.ticket(ticket.id).state is TicketState.COMPLETED
