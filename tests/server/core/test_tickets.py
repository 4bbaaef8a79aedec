"""Filing, withdrawal and expiry of requests to be forgotten."""

from __future__ import annotations

import pytest

from puf_common.errors import InvalidArgument, NotFound, NotNow, StaleRound
from puf_server.core import assignments, roster, rounds, tickets
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import TicketState
from tests.server.core.builders import Federation, config, header

EVERYONE = ("a", "b", "c", "d")


def trained(**changes: object) -> Federation:
    f = Federation(config(**changes))
    f.join(*EVERYONE)
    f.train()
    return f


def test_after_filing_a_client_gets_no_training_and_its_update_is_dropped() -> None:
    f = Federation(config(plan={"min_clients": 4, "rounds": 5}))
    f.join(*EVERYONE)
    f.run_round(RoundKind.TRAIN)
    stated = header(f.round, f.round.assignments[1])
    f.submit("b")
    f.file("b")
    assert "b" not in {s.client for s in f.round.assignments}
    assert "b/main" not in f.round.received
    assert assignments.work_for(f.state, f.config, "b", f.state.members["b"].session, f.now) is None
    with pytest.raises(StaleRound):
        rounds.expected_assignment(f.state, "b", stated)
    f.run_round(RoundKind.TRAIN)
    f.answer_evaluation(0.5)
    assert f.round.kind is RoundKind.UNLEARN


def test_asking_twice_is_one_ticket() -> None:
    f = trained()
    first = f.file("b")
    assert f.file("b").id == first.id
    assert f.file("b", key="another").id == first.id


def test_a_pending_request_can_be_withdrawn_and_training_resumes() -> None:
    f = trained(plan={"min_clients": 2, "absent_seconds": 60, "rounds": 5})
    f.wait(61, "a", "b", "c")
    ticket = f.file("d")
    assert ticket.state is TicketState.PENDING
    f.apply(tickets.withdraw(f.state, "d", ticket.id, f.now)[0])
    assert f.ticket(ticket.id).state is TicketState.WITHDRAWN
    assert "d" in {m.name for m in roster.retained(f.state)}


def test_a_scheduled_request_cannot_be_withdrawn_and_other_clients_do_not_see_it() -> None:
    f = trained()
    ticket = f.file("b")
    with pytest.raises(NotNow):
        tickets.withdraw(f.state, "b", ticket.id, f.now)
    with pytest.raises(NotFound):
        tickets.withdraw(f.state, "a", ticket.id, f.now)


def test_a_request_of_a_client_that_no_model_contains_does_not_fail_at_its_deadline() -> None:
    """It waits for another request's rounds, and then there is nothing to forget."""
    f = Federation(config())
    f.join("a", "b", "c")
    f.train()
    f.join("d")
    f.file("b")
    f.answer_evaluation(0.8)
    asked = f.file("d", scope="samples", forget_samples=3, retain_samples=7)
    f.apply(roster.leave(f.state, "d", f.state.members["d"].session, f.now))
    f.wait(31 * 86400.0, "a", "b", "c")
    assert f.ticket(asked.id).state is TicketState.COMPLETED


def test_an_absent_targets_ticket_fails_at_its_deadline_and_keeps_it_out_of_training() -> None:
    f = trained(plan={"min_clients": 2, "absent_seconds": 60}, forgetting={"deadline_days": 1.0})
    f.wait(61, "a", "b", "c")
    ticket = f.file("d")
    f.wait(86401, "a", "b", "c")
    assert f.ticket(ticket.id).state is TicketState.FAILED
    assert "d" not in {m.name for m in roster.retained(f.state)}
    assert f.file("d", key="again").state is TicketState.PENDING
    assert f.ticket(ticket.id).state is TicketState.WITHDRAWN


def test_an_overdue_request_of_an_alive_client_is_served() -> None:
    f = trained(forgetting={"deadline_days": 1.0})
    ticket = f.file("b", received_at=f.now - 10 * 86400)
    assert ticket.state is TicketState.SCHEDULED


@pytest.mark.parametrize(
    "wrong",
    [
        {"kappa": 0.4},
        {"kappa": 4.5},
        {"kappa": float("nan")},
        {"eta_u": 0.0},
        {"eta_u": -1.0},
        {"eta_u": 41.0},
        {"eta_u": float("inf")},
        {"epochs": 6},
        {"scope": "samples", "forget_samples": 0, "retain_samples": 10},
        {"scope": "samples", "forget_samples": 10, "retain_samples": 0},
        {"scope": "samples", "forget_samples": 5, "retain_samples": 6},
        {"key": ""},
    ],
)
def test_a_request_outside_the_policy_is_refused_when_filed(wrong: dict[str, object]) -> None:
    f = trained()
    before = f.state
    with pytest.raises(InvalidArgument):
        f.file("b", **wrong)
    assert f.state is before
