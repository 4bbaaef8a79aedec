"""Models while a reopened request waits: every newer model contains its client."""

from __future__ import annotations

from dataclasses import replace

from tests.server.core.builders import Federation, config
from tests.server.core.unlearning.restored import (
    older,
    show_pending,
)
from tests.tickets import outcome

from puf_server.core import roster, tickets
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import TicketState


def waiting() -> tuple[Federation, str]:
    """b was forgotten, an older backup is restored, and b stays away."""
    f, receipt = older()
    f.apply(roster.leave(f.state, "b", f.state.members["b"].session, f.now))
    f.apply(replace(show_pending(f, receipt), planned=4))
    return f, receipt.ticket.id


def statuses(f: Federation) -> dict[int, ModelStatus]:
    return {v: m.status for v, m in f.state.models.items()}


def test_models_of_further_rounds_are_withdrawn_too() -> None:
    f, ticket = waiting()
    f.train()
    assert f.state.trained == 4
    assert f.ticket(ticket).state is TicketState.PENDING
    assert {statuses(f)[v] for v in (1, 2, 3, 4)} == {ModelStatus.WITHDRAWN}


def test_the_round_that_serves_it_makes_usable_models() -> None:
    f, ticket = waiting()
    f.train()
    f.join("b")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    assert statuses(f)[5] is ModelStatus.UNLEARNED
    f.answer_evaluation(0.8)
    assert f.ticket(ticket).state is TicketState.COMPLETED
    assert outcome(f.ticket(ticket)).deleted_versions == (1, 2, 3, 4)
    assert statuses(f)[5] is ModelStatus.READY


def test_withdrawing_the_request_makes_models_usable() -> None:
    f, ticket = waiting()
    f.run_round(RoundKind.TRAIN)
    f.apply(tickets.withdraw(f.state, "b", ticket, f.now)[0])
    assert set(statuses(f).values()) == {ModelStatus.READY}
    f.run_round(RoundKind.TRAIN)
    assert statuses(f)[4] is ModelStatus.READY


def test_a_failed_request_does_not_make_models_usable() -> None:
    f, ticket = waiting()
    f.run_round(RoundKind.TRAIN)
    f.wait(31 * 86400.0, "a", "c", "d")
    assert f.ticket(ticket).state is TicketState.FAILED
    f.run_round(RoundKind.TRAIN)
    assert statuses(f)[4] is ModelStatus.WITHDRAWN


def test_completing_another_ticket_does_not_make_models_ready() -> None:
    f, _ = waiting()
    f.train()
    other = f.file("c")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    assert f.ticket(other.id).state is TicketState.COMPLETED
    # c is forgotten, but the model still contains b. The newest model is never deleted.
    assert statuses(f)[f.state.version] is ModelStatus.WITHDRAWN
    assert {statuses(f)[v] for v in (1, 2, 3, 4)} == {ModelStatus.DELETED}


def test_a_model_that_a_job_builds_in_several_rounds_is_withdrawn() -> None:
    """The job deletes the base of each of its models."""
    receipt = older()[1]
    f = Federation(config(forgetting={"method": "retrain"}))
    f.join("a", "b", "c", "d")
    f.train()
    other = f.file("c")
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.apply(roster.leave(f.state, "b", f.state.members["b"].session, f.now))
    receipt = receipt.model_copy(update={"ticket": receipt.ticket.model_copy(update={"id": "t-b"})})
    f.apply(show_pending(f, receipt))
    f.run_round(RoundKind.UNLEARN)
    assert f.ticket(other.id).applied is not None
    assert statuses(f)[f.state.version] is ModelStatus.WITHDRAWN
