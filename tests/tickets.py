"""Parts of a ticket that a test knows to be there."""

from __future__ import annotations

from puf_server.core.state.tickets import Applied, Outcome, Ticket

__all__ = ["applied", "outcome"]


def applied(ticket: Ticket) -> Applied:
    assert ticket.applied is not None
    return ticket.applied


def outcome(ticket: Ticket) -> Outcome:
    assert ticket.outcome is not None
    return ticket.outcome
