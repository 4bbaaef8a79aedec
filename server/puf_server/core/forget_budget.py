"""How much may be forgotten without operator approval.

Every client may ask, whatever other clients asked for. A request beyond the budget is filed and waits for operator
approval. So requests alone cannot empty a federation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from puf_common.errors import TooMuch
from puf_server.core.config import Limits
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.state import State
from puf_server.core.state.tickets import FiledBy, Ticket, TicketState

_HOUR, _DAY = 3600.0, 86400.0
_OVER = (TicketState.FAILED, TicketState.WITHDRAWN)


def require(mine: Iterable[Ticket], limits: Limits, now: float) -> None:
    """Refuses a client that files more often than the limit. Withdrawn requests count."""
    recent = [
        t.request.filed_at for t in mine if t.request.filed_by is FiledBy.CLIENT and t.request.filed_at > now - _HOUR
    ]
    if len(recent) >= limits.tickets_per_hour:
        raise TooMuch(
            f"this client filed {limits.tickets_per_hour} requests within an hour; file the next one later",
            limit=limits.tickets_per_hour,
        )


def weighed(state: State, limits: Limits, member: Member, ticket: Ticket, now: float) -> Ticket:
    """The ticket with the samples that it takes out. It is on hold if they exceed the budget."""
    if member.first_round == 0:
        # No model contains this client.
        return ticket
    weight = member.samples if ticket.whole_client else ticket.forget_samples
    ticket = replace(ticket, request=replace(ticket.request, weight=weight))
    recent = [
        t
        for t in state.tickets.values()
        if t.request.filed_at > now - limits.forget_days * _DAY and t.state not in _OVER
    ]
    here = {m.name: m for m in state.members.values() if m.status is MemberStatus.ACTIVE}
    gone = sum(t.request.weight for t in recent if not t.whole_client or not _still_counted(here.get(t.client), t))
    everything = sum(m.samples for m in here.values()) + gone
    share = (sum(t.request.weight for t in recent) + weight) / everything if everything else 0.0
    if ticket.request.filed_by is FiledBy.OPERATOR or share <= limits.forget_share:
        return ticket
    return replace(
        ticket,
        on_hold=f"with it {share:.0%} of all samples would be forgotten within {limits.forget_days:g} days; "
        f"without operator approval the limit is {limits.forget_share:.0%}",
    )


def _still_counted(member: Member | None, ticket: Ticket) -> bool:
    return member is not None and member.membership == ticket.membership
