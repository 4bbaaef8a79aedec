"""Receipts shown to a state that is older than what they tell of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.server.core.builders import Federation, config
from tests.tickets import applied, outcome

from puf_common.errors import TransferCorrupted
from puf_common.receipts.content import ReceiptContent
from puf_server.core import roster, tickets
from puf_server.core.audit_chain import Head
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.core.unlearning import reopen
from puf_server.core.unlearning.receipt_content import build

FORGET = {"scope": "samples", "forget_samples": 3, "retain_samples": 7}


def trained() -> Federation:
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    return f


def completed(f: Federation, **request: Any) -> ReceiptContent:
    """Has b forgotten; the receipt."""
    ticket = f.file("b", **request)
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    done = f.ticket(ticket.id)
    assert done.state is TicketState.COMPLETED
    return build(f.state, f.config, done, head=Head(9, b""), now=f.now, software="1")


def older(**request: Any) -> tuple[Federation, ReceiptContent]:
    """A federation as it was before b was forgotten, and the receipt of what came after."""
    f = trained()
    backup = f.state
    receipt = completed(f, **request)
    f.restart(backup)
    return f, receipt


def events(state: State) -> list[str]:
    return [note.event for note in state.notes]


def show(f: Federation, receipt: ReceiptContent) -> tuple[bool, str]:
    state, reopened, why = reopen.reopen(f.state, f.config, receipt, f.now)
    f.state = state
    return reopened, why


def test_a_state_that_knows_of_it_stays_as_it_is() -> None:
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


def test_it_is_then_served_like_any_other() -> None:
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


def test_showing_it_twice_changes_nothing_more() -> None:
    f, receipt = older()
    assert show(f, receipt)[0]
    before = f.state
    assert not show(f, receipt)[0]
    assert f.state is before


def test_asking_again_finds_the_reopened_ticket() -> None:
    f, receipt = older()
    show(f, receipt)
    again = tickets.RequestForm(key="another")
    _, ticket, duplicate = tickets.file(f.state, f.presence, f.config, "b", again, ticket_id="t-new", now=f.now)
    assert duplicate
    assert ticket.id == receipt.ticket.id


def test_samples_are_out_of_training_again() -> None:
    f, receipt = older(**FORGET)
    show(f, receipt)
    ticket = f.ticket(receipt.ticket.id)
    assert (ticket.request.scope, ticket.forget_samples, ticket.request.key) == ("samples", 3, "k-b")
    assert f.state.members["b"].samples == 7


def test_one_that_is_on_its_way_goes_on() -> None:
    f = trained()
    ticket = f.file("b")
    backup = f.state
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    receipt = build(f.state, f.config, f.ticket(ticket.id), head=Head(9, b""), now=f.now, software="1")
    f.restart(backup)
    reopened, why = show(f, receipt)
    assert not reopened
    assert "scheduled" in why


def test_a_client_that_the_backup_never_knew_is_not_let_in_again() -> None:
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


def test_another_membership_is_none_of_its_business() -> None:
    f, receipt = older()
    other = receipt.ticket.model_copy(update={"membership": 2})
    receipt = receipt.model_copy(update={"ticket": other})
    reopened, why = show(f, receipt)
    assert not reopened
    assert "nothing of membership 2" in why


def test_a_history_that_contradicts_it_is_not_believed() -> None:
    f, receipt = older()
    f.state = tickets.withdraw(show_pending(f, receipt), "b", receipt.ticket.id, f.now)[0]
    with pytest.raises(TransferCorrupted, match="another history"):
        show(f, receipt)


def show_pending(f: Federation, receipt: ReceiptContent) -> State:
    return reopen.reopen(f.state, f.config, receipt, f.now)[0]


@pytest.mark.parametrize("missing", ["filed_at", "received_at"])
def test_a_receipt_without_the_dates_opens_nothing(missing: str) -> None:
    f, receipt = older()
    dateless = receipt.ticket.model_copy(update={missing: None})
    with pytest.raises(TransferCorrupted, match="lacks the dates"):
        show(f, receipt.model_copy(update={"ticket": dateless}))


def test_a_restored_state_asks_for_the_round_again() -> None:
    f = Federation(config(plan={"rounds": 5}))
    f.join("a", "b")
    f.submit("a")
    state = reopen.restored(f.state, f.now, made_at=1.0, line=3)
    assert state.round is None
    assert events(state)[-2:] == ["round.abandoned", "federation.restored"]
    f.apply(state)
    assert f.round.attempt == 2
    assert not f.round.received


class TestNothingReadyComesOfAWithdrawnModel:
    """While somebody who was forgotten once waits to be forgotten again, every newer model still knows it."""

    def waiting(self) -> tuple[Federation, str]:
        """b was forgotten, a backup from before is back, and b stays away."""
        f, receipt = older()
        f.apply(roster.leave(f.state, "b", f.state.members["b"].session, f.now))
        f.apply(replace(show_pending(f, receipt), planned=4))
        return f, receipt.ticket.id

    def statuses(self, f: Federation) -> dict[int, ModelStatus]:
        return {v: m.status for v, m in f.state.models.items()}

    def test_rounds_go_on_but_their_models_are_withdrawn_too(self) -> None:
        f, ticket = self.waiting()
        f.train()
        assert f.state.trained == 4
        assert f.ticket(ticket).state is TicketState.PENDING
        assert {self.statuses(f)[v] for v in (1, 2, 3, 4)} == {ModelStatus.WITHDRAWN}

    def test_the_round_that_serves_it_makes_models_that_may_be_used_again(self) -> None:
        f, ticket = self.waiting()
        f.train()
        f.join("b")
        f.answer_evaluation(0.8)
        f.run_round(RoundKind.UNLEARN)
        assert self.statuses(f)[5] is ModelStatus.UNLEARNED
        f.answer_evaluation(0.8)
        assert f.ticket(ticket).state is TicketState.COMPLETED
        assert outcome(f.ticket(ticket)).deleted_versions == (1, 2, 3, 4)
        assert self.statuses(f)[5] is ModelStatus.READY

    def test_a_request_taken_back_releases_them(self) -> None:
        f, ticket = self.waiting()
        f.run_round(RoundKind.TRAIN)
        f.apply(tickets.withdraw(f.state, "b", ticket, f.now)[0])
        assert set(self.statuses(f).values()) == {ModelStatus.READY}
        f.run_round(RoundKind.TRAIN)
        assert self.statuses(f)[4] is ModelStatus.READY

    def test_one_that_failed_does_not(self) -> None:
        f, ticket = self.waiting()
        f.run_round(RoundKind.TRAIN)
        f.wait(31 * 86400.0, "a", "c", "d")
        assert f.ticket(ticket).state is TicketState.FAILED
        f.run_round(RoundKind.TRAIN)
        assert self.statuses(f)[4] is ModelStatus.WITHDRAWN

    def test_somebody_elses_completion_does_not_make_them_ready(self) -> None:
        f, _ = self.waiting()
        f.train()
        other = f.file("c")
        f.answer_evaluation(0.8)
        f.run_round(RoundKind.UNLEARN)
        f.answer_evaluation(0.8)
        assert f.ticket(other.id).state is TicketState.COMPLETED
        # c is forgotten, b is still in it; and without a newest model nothing could go on.
        assert self.statuses(f)[f.state.version] is ModelStatus.WITHDRAWN
        assert {self.statuses(f)[v] for v in (1, 2, 3, 4)} == {ModelStatus.DELETED}
