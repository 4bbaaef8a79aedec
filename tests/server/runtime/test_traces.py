"""Spans of tickets, from the history of a ticket."""

from __future__ import annotations

from dataclasses import replace

from tests.server.core.builders import config, initial

from puf_common.tracing.places import place_of_ticket
from puf_server.core.state.tickets import Flip, Mode, Request, Scope, Ticket, TicketEvent, TicketState
from puf_server.runtime.traces import ticket_spans

STATE = initial(config())
REQUEST = Request(
    key="r", scope=Scope.CLIENT, mode=Mode.REGULAR, flip=Flip.CLIENT, kappa=2.0, eta_u=None, epochs=1, filed_at=10.0,
    received_at=9.0,
)  # fmt: skip


def ticket(*history: tuple[TicketState, float]) -> Ticket:
    events = tuple(TicketEvent(state=state, at=at) for state, at in history)
    made = Ticket(id="t-1", client="anna", membership=1, request=REQUEST, deadline_at=99.0, history=events)
    return replace(made, state=events[-1].state)


FILED = ticket((TicketState.PENDING, 10.0))
SCHEDULED = ticket((TicketState.PENDING, 10.0), (TicketState.PENDING, 11.0), (TicketState.SCHEDULED, 12.0))
APPLIED = replace(SCHEDULED, history=(*SCHEDULED.history, TicketEvent(state=TicketState.APPLIED, at=13.0)))
COMPLETED = replace(
    APPLIED, state=TicketState.COMPLETED, history=(*APPLIED.history, TicketEvent(state=TicketState.COMPLETED, at=15.0))
)


def spans(before: Ticket | None, after: Ticket) -> list[tuple[str, float, float]]:
    return [(span.name, span.begun, span.ended) for span in ticket_spans("f", STATE, before, after)]


def test_a_state_that_was_left_becomes_one_span() -> None:
    assert spans(None, FILED) == []
    assert spans(FILED, SCHEDULED) == [("ticket.pending", 10.0, 12.0)]
    assert spans(SCHEDULED, SCHEDULED) == []
    assert spans(SCHEDULED, APPLIED) == [("ticket.scheduled", 12.0, 13.0)]


def test_the_span_of_the_ticket_lasts_from_filing_to_its_end() -> None:
    assert spans(APPLIED, COMPLETED) == [("ticket.applied", 13.0, 15.0), ("ticket", 10.0, 15.0)]
    *below, root = ticket_spans("f", STATE, APPLIED, COMPLETED)
    assert root.at == place_of_ticket("f", "t-1")
    assert [span.parent for span in below] == [root.at]
    assert "anna" not in str(root.attributes)
    assert spans(COMPLETED, replace(COMPLETED, attempts=1)) == []
