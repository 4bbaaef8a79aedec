"""Receipts that are newer than the state to which they are shown."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.core.builders import Federation, config
from tests.server.core.unlearning.restored import (
    FORGET,
    completed,
    events,
    older,
    open_then_older,
    show,
    trained,
)
from tests.tickets import applied, outcome

from puf_common.audit_chain import Head
from puf_common.errors import TransferCorrupted, UnknownSession
from puf_server.core import roster, tickets
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import RequestForm, Scope, TicketState
from puf_server.core.unlearning import model_versions, reopen
from puf_server.core.unlearning.receipt_content import build


def test_a_state_that_has_the_ticket_does_not_change() -> None:
    f = trained()
    receipt = completed(f)
    before = f.state
    reopened, why = show(f, receipt)
    assert not reopened
    assert "completed" in why
    assert f.state is before


def test_an_older_state_opens_the_ticket_again_and_withdraws_its_models() -> None:
    f, receipt = older()
    reopened, why = show(f, receipt)
    assert reopened
    assert "older than its completion" in why
    ticket = f.ticket(receipt.ticket.id)
    assert ticket.state is TicketState.PENDING
    assert "reopened" in ticket.history[0].note
    assert ticket.deadline_at > f.now
    assert {v: m.status for v, m in f.state.models.items()} == {
        0: ModelStatus.READY,
        1: ModelStatus.WITHDRAWN,
        2: ModelStatus.WITHDRAWN,
    }
    assert "ticket.reopened" in events(f.state)
    assert "b" not in {m.name for m in roster.retained(f.state)}


def test_the_reopened_ticket_is_served_like_any_other() -> None:
    f, receipt = older()
    show(f, receipt)
    f.apply(f.state)
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    ticket = f.ticket(receipt.ticket.id)
    assert ticket.state is TicketState.COMPLETED
    assert f.state.members["b"].status is MemberStatus.FORGOTTEN
    assert outcome(ticket).deleted_versions == (1, 2)
    assert f.state.models[f.state.version].status is ModelStatus.READY


def test_showing_a_receipt_twice_changes_nothing_more() -> None:
    f, receipt = older()
    assert show(f, receipt)[0]
    before = f.state
    assert not show(f, receipt)[0]
    assert f.state is before


@pytest.mark.parametrize("request_form", [{}, {"scope": Scope.SAMPLES, "forget_samples": 3, "retain_samples": 7}])
def test_a_ticket_that_waits_in_the_backup_gets_a_new_deadline_and_its_models_are_withdrawn(
    request_form: dict[str, Any],
) -> None:
    f, receipt = open_then_older(**request_form)
    before = f.ticket("t-1")
    samples = f.state.members["b"].samples
    f.now = before.deadline_at + 1
    reopened, why = show(f, receipt)
    assert reopened
    assert "older than its completion" in why
    ticket = f.ticket("t-1")
    assert (ticket.state, ticket.reopened) == (TicketState.PENDING, True)
    assert ticket.deadline_at == f.now + f.config.forgetting.deadline_days * 86400
    assert "reopened" in ticket.history[-1].note
    assert {m.status for v, m in f.state.models.items() if v} == {ModelStatus.WITHDRAWN}
    assert f.state.members["b"].samples == samples
    assert "ticket.reopened" in events(f.state)
    f.state = tickets.expire(f.state, f.presence, f.config, f.now)
    assert f.ticket("t-1").state is TicketState.PENDING
    assert not show(f, receipt)[0]


def test_a_ticket_that_failed_after_the_restore_is_opened_again_once() -> None:
    f, receipt = open_then_older()
    f.state = tickets.move(f.state, "t-1", TicketState.FAILED, f.now, "deadline passed")
    assert show(f, receipt)[0]
    assert f.ticket("t-1").state is TicketState.PENDING
    f.state = tickets.move(f.state, "t-1", TicketState.FAILED, f.now, "declined")
    assert not show(f, receipt)[0]
    assert f.ticket("t-1").state is TicketState.FAILED


def test_a_ticket_whose_job_runs_stays_scheduled_and_is_served() -> None:
    f, receipt = open_then_older()
    f.apply(f.state)
    assert f.ticket("t-1").state is TicketState.SCHEDULED
    assert show(f, receipt)[0]
    assert f.ticket("t-1").state is TicketState.SCHEDULED
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    assert f.ticket("t-1").state is TicketState.COMPLETED
    assert f.state.models[f.state.version].status is ModelStatus.READY


def test_asking_again_finds_the_reopened_ticket() -> None:
    f, receipt = older()
    show(f, receipt)
    again = RequestForm(key="another")
    _, ticket, duplicate = tickets.file(f.state, f.presence, f.config, "b", again, ticket_id="t-new", now=f.now)
    assert duplicate
    assert ticket.id == receipt.ticket.id


def test_samples_are_out_of_training_again() -> None:
    f, receipt = older(**FORGET)
    show(f, receipt)
    ticket = f.ticket(receipt.ticket.id)
    assert (ticket.request.scope, ticket.forget_samples, ticket.request.key) == ("samples", 3, "k-b")
    assert f.state.members["b"].samples == 7


def test_a_request_that_takes_over_a_reopened_one_keeps_its_models_withdrawn() -> None:
    f, receipt = older(**FORGET)
    show(f, receipt)
    whole = RequestForm(key="whole")
    f.state, ticket, _ = tickets.file(f.state, f.presence, f.config, "b", whole, ticket_id="t-new", now=f.now)
    assert f.ticket(receipt.ticket.id).taken_over == ticket.id
    # A recovery that ends meanwhile must not make the model usable: it contains the samples that were forgotten once.
    assert model_versions.ready(f.state).models[f.state.version].status is ModelStatus.WITHDRAWN
    after, _ = tickets.withdraw(f.state, "b", "t-new", f.now)
    assert after.models[f.state.version].status is ModelStatus.READY


def test_a_client_that_joined_after_the_backup_may_not_join_again() -> None:
    f = Federation(config())
    f.join("a", "c", "d")
    f.train()
    backup = f.state
    f.join("b")
    f.state = f.state.with_member(f.state.members["b"])
    ticket = f.file("b")
    assert applied(f.ticket(ticket.id)).method == "none"
    receipt = build(f.state, f.config, f.ticket(ticket.id), head=Head(9, b""), now=f.now, software="1")
    f.restart(backup)
    assert show(f, receipt)[0]
    f.apply(f.state)
    assert f.ticket(ticket.id).state is TicketState.COMPLETED
    assert f.state.members["b"].status is MemberStatus.FORGOTTEN
    assert all(m.status is ModelStatus.READY for m in f.state.models.values())


def test_a_receipt_of_another_membership_changes_nothing() -> None:
    f, receipt = older()
    other = receipt.ticket.model_copy(update={"membership": 2})
    receipt = receipt.model_copy(update={"ticket": other})
    reopened, why = show(f, receipt)
    assert not reopened
    assert "nothing of membership 2" in why


@pytest.mark.parametrize("form", [{}, FORGET])
def test_a_client_that_another_ticket_forgot_is_not_forgotten_again(form: dict[str, Any]) -> None:
    """Two restores: the receipt is of a history in which the client asked under another ticket."""
    f = trained()
    backup = f.state
    completed(f)
    forgotten = f.state
    f.restart(backup)
    receipt = completed(f, key="asked-again", **form)
    receipt = receipt.model_copy(update={"ticket": receipt.ticket.model_copy(update={"id": "t-other"})})
    f.restart(forgotten)
    reopened, why = show(f, receipt)
    assert not reopened
    assert "forgot b here" in why
    assert f.state == forgotten


def test_a_receipt_that_contradicts_the_state_is_refused() -> None:
    f, receipt = open_then_older()
    f.state = tickets.withdraw(f.state, "b", receipt.ticket.id, f.now)[0]
    with pytest.raises(TransferCorrupted, match="another history"):
        show(f, receipt)


def test_samples_that_were_asked_for_twice_count_once_for_the_whole_client() -> None:
    """The backup has the first request, which failed later. The receipt is of the second one, for the same samples."""
    f = trained()
    first = f.file("b", **FORGET)
    f.answer_evaluation(0.8)
    f.apply(roster.leave(f.state, "b", f.state.members["b"].session, f.now))
    f.wait(31 * 86400.0, "a", "c", "d")
    assert f.ticket(first.id).state is TicketState.FAILED
    backup = f.state
    f.join("b", samples=7)
    receipt = completed(f, **FORGET, key="again", replaces=first.id)
    assert receipt.ticket.replaces == first.id
    f.restart(backup)
    assert show(f, receipt)[0]
    whole = RequestForm(key="whole")
    taken = tickets.file(f.state, f.presence, f.config, "b", whole, ticket_id="t-new", now=f.now)[1]
    assert taken.taken_samples == 3


@pytest.mark.parametrize("mode", ["regular", "special"])
def test_two_reopened_requests_of_one_client_are_served_one_after_the_other(mode: str) -> None:
    """A client files its next request only after the last one, but a restore opens both again."""
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    backup = f.state
    first = completed(f, mode=mode, **FORGET)
    second = completed(f, mode=mode, key="second", scope="samples", forget_samples=2, retain_samples=5)
    f.restart(backup)
    for receipt in (first, second):
        assert show(f, receipt)[0]
    f.apply(f.state)
    f.answer_evaluation(0.8)
    assert [t.id for t in f.state.tickets.values() if t.state is TicketState.SCHEDULED] == [first.ticket.id]
    keys = [assignment.key for assignment in f.round.assignments]
    assert len(keys) == len(set(keys))
    f.run_round(RoundKind.UNLEARN)
    f.run_round(RoundKind.UNLEARN)
    assert {t.applied is not None for t in f.state.tickets.values()} == {True}


def test_a_reopened_request_that_was_withdrawn_stays_withdrawn() -> None:
    """A later backup of the restored federation can be restored with the same receipts."""
    f, receipt = older()
    show(f, receipt)
    withdrawn = f.state = tickets.withdraw(f.state, "b", receipt.ticket.id, f.now)[0]
    assert show(f, receipt) == (False, f"ticket {receipt.ticket.id} is withdrawn here: nothing to do")
    assert f.state == withdrawn


@pytest.mark.parametrize("missing", ["filed_at", "received_at"])
def test_a_receipt_without_the_dates_opens_nothing(missing: str) -> None:
    f, receipt = older()
    dateless = receipt.ticket.model_copy(update={missing: None})
    with pytest.raises(TransferCorrupted, match="lacks the dates"):
        show(f, receipt.model_copy(update={"ticket": dateless}))


def test_workers_must_join_a_restored_state_again() -> None:
    """What a worker knows of models and rounds is not true in a restored state, where their numbers repeat."""
    f = trained()
    session = f.state.members["a"].session
    assert roster.session_member(f.state, "a", session)
    after = reopen.restored(f.state, f.now)
    with pytest.raises(UnknownSession):
        roster.session_member(after, "a", session)


def test_a_restored_state_opens_the_round_again() -> None:
    f = Federation(config(plan={"rounds": 5}))
    f.join("a", "b")
    f.submit("a")
    state = reopen.restored(f.state, f.now, made_at=1.0, line=3)
    assert state.round is None
    assert events(state)[-2:] == ["round.abandoned", "federation.restored"]
    f.apply(state)
    f.join("a", "b")
    assert f.round.attempt == 2
    assert not f.round.received
