"""A federation that was restored from a backup, and receipts that are newer than it."""

from __future__ import annotations

from typing import Any

from tests.server.core.builders import Federation, config

from puf_common.audit_chain import Head
from puf_common.receipts.content import ReceiptContent
from puf_server.core import tickets
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import RequestForm, TicketState
from puf_server.core.unlearning import reopen
from puf_server.core.unlearning.receipt_content import build

FORGET = {"scope": "samples", "forget_samples": 3, "retain_samples": 7}


def trained() -> Federation:
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    return f


def completed(f: Federation, **request: Any) -> ReceiptContent:
    """The receipt of the completed request of b."""
    ticket = f.file("b", **request)
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    done = f.ticket(ticket.id)
    assert done.state is TicketState.COMPLETED
    return build(f.state, f.config, done, head=Head(9, b""), now=f.now, software="1")


def older(**request: Any) -> tuple[Federation, ReceiptContent]:
    """A federation from before b was forgotten, and the receipt of the later request."""
    f = trained()
    backup = f.state
    receipt = completed(f, **request)
    f.restart(backup)
    return f, receipt


def open_then_older(**request: Any) -> tuple[Federation, ReceiptContent]:
    """A federation restored from a backup that was made while the request of b waited, and the receipt of its completion."""
    f = trained()
    ticket = tickets.file(
        f.state, f.presence, f.config, "b", RequestForm(key="k", **request), ticket_id="t-1", now=f.now
    )
    backup = ticket[0]
    f.apply(backup)
    f.answer_evaluation(0.8)
    f.run_round(RoundKind.UNLEARN)
    f.answer_evaluation(0.8)
    done = f.ticket("t-1")
    assert done.state is TicketState.COMPLETED
    receipt = build(f.state, f.config, done, head=Head(9, b""), now=f.now, software="1")
    f.restart(backup)
    return f, receipt


def events(state: State) -> list[str]:
    return [note.event for note in state.notes]


def show(f: Federation, receipt: ReceiptContent) -> tuple[bool, str]:
    state, reopened, why = reopen.reopen(f.state, f.config, receipt, f.now)
    f.state = state
    return reopened, why


def show_pending(f: Federation, receipt: ReceiptContent) -> State:
    return reopen.reopen(f.state, f.config, receipt, f.now)[0]
