"""Receipts that are shown to a restored state: a backup must not undo forgetting.

A receipt proves that its ticket was completed. If the state has applied the ticket, nothing is to do. If the ticket waits,
has failed or is unknown, the state is older than the receipt, and its models contain the client. The ticket is then opened
again under its old id with a new deadline, and every model since the client's first round is withdrawn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from puf_common.dates import from_utc
from puf_common.errors import TransferCorrupted
from puf_common.receipts.content import ReceiptContent
from puf_server.core import roster, rounds, tickets
from puf_server.core.config import FederationConfig
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.state import State
from puf_server.core.state.tickets import (
    FiledBy,
    Flip,
    Mode,
    Request,
    Scope,
    Strength,
    Ticket,
    TicketEvent,
    TicketState,
)
from puf_server.core.unlearning import model_versions


def restored(state: State, now: float, **facts: Any) -> State:
    """The state after a restore. A backup holds no updates, so the open round is abandoned."""
    state = rounds.abandon(state, now, "the state was restored from a backup, which holds no updates")
    # Workers must join again: what they know of rounds and models is not true here.
    members = {name: replace(member, session="", instance="") for name, member in state.members.items()}
    state = replace(state, members=members)
    return state.note("federation.restored", now, **facts)


def reopen(state: State, config: FederationConfig, receipt: ReceiptContent, now: float) -> tuple[State, bool, str]:
    """The state after a verified receipt of this federation, whether it opened the ticket again, and why."""
    ticket_id, client, membership = receipt.ticket.id, receipt.ticket.client, receipt.ticket.membership
    known = state.tickets.get(ticket_id)
    if known is not None and known.state is TicketState.WITHDRAWN and not known.reopened:
        raise TransferCorrupted(
            f"ticket {ticket_id} of {client} is withdrawn here: the receipt tells of another history, in which it was "
            "completed. Leave this receipt out to continue, and let the client ask again"
        )
    if known is not None and (known.reopened or not _unapplied(known)):
        return state, False, f"ticket {ticket_id} is {known.state} here: nothing to do"
    member = state.members.get(client)
    if member is not None and member.membership != membership:
        # No audit entry: nothing changes, and a receipt can be shown any number of times.
        return state, False, f"this state holds nothing of membership {membership} of {client}: nothing to forget"
    other = next((t for t in state.tickets.values() if _forgot(t, client, membership)), None)
    if other is not None:
        return state, False, f"ticket {other.id} forgot {client} here: nothing to do"
    if member is None:
        # The client joined after the backup. No model contains it, but its name must not join again unasked. The ticket
        # completes at once, because there is nothing to forget.
        member = _without_samples(client, membership, now)
        state = state.with_member(member)
    if known is not None:
        # Its client, or its samples, are out of training already.
        state = _once_more(state, known, _note(receipt), config, now)
    else:
        state = _filed_again(state, member, _again(receipt, config, now))
        state = rounds.drop_client(state, client, now)
    if member.first_round:
        # The newest model contains the client, too.
        state = model_versions.mark(state, ModelStatus.WITHDRAWN, lambda m: m.round >= member.first_round)
    why = "the state was restored from a backup older than its completion"
    state = state.note("ticket.reopened", now, ticket=ticket_id, client=client, scope=receipt.ticket.scope, why=why)
    return state, True, f"ticket {ticket_id} is open again: {why}"


def _unapplied(ticket: Ticket) -> bool:
    """Whether the models still contain what the ticket is about."""
    return ticket.applied is None and (ticket.waiting or ticket.state is TicketState.FAILED)


def _forgot(ticket: Ticket, client: str, membership: int) -> bool:
    """Whether the ticket removed the whole client. Before an earlier restore the client may have had another ticket."""
    return (ticket.client, ticket.membership) == (client, membership) and ticket.whole_client and bool(ticket.applied)


def _filed_again(state: State, member: Member, ticket: Ticket) -> State:
    """The state with an unknown ticket. Samples that it forgets leave the client's count."""
    rest = ticket.request.retain_samples or 0
    if not ticket.whole_client and member.samples == ticket.forget_samples + rest:
        state = state.with_member(roster.with_samples(member, rest - member.samples))
    return state.with_ticket(ticket)


def _again(receipt: ReceiptContent, config: FederationConfig, now: float) -> Ticket:
    """The ticket as it was filed. Its deadline counts from now: the old one could not be kept."""
    filed, method = receipt.ticket, receipt.method
    try:
        filed_at, received_at = from_utc(filed.filed_at or ""), from_utc(filed.received_at or "")
    except ValueError:
        raise TransferCorrupted("the receipt lacks the dates that are needed to open its ticket again") from None
    return Ticket(
        id=filed.id,
        client=filed.client,
        membership=filed.membership,
        request=Request(
            key=filed.request_key,
            scope=Scope(filed.scope),
            mode=Mode(method.mode or config.forgetting.mode),
            flip=Flip(method.flip or config.forgetting.flip),
            strength=Strength(method.strength or Strength.FIXED),
            kappa=None if method.strength else method.kappa,
            eta_u=method.eta_u,
            epochs=method.epochs or config.forgetting.epochs,
            forget_samples=filed.forget_samples,
            retain_samples=filed.retain_samples,
            reference=filed.reference,
            filed_by=FiledBy(filed.filed_by),
            filed_at=filed_at,
            received_at=received_at,
        ),
        deadline_at=_deadline(config, now),
        history=(TicketEvent(state=TicketState.PENDING, at=now, note=_note(receipt)),),
        reopened=True,
        replaces=filed.replaces or "",
    )


def _once_more(state: State, known: Ticket, note: str, config: FederationConfig, now: float) -> State:
    """The state with a ticket that waits or has failed opened again. A ticket whose job runs stays scheduled.

    It was completed once, so the operator had approved it.
    """
    if known.waiting:
        event = TicketEvent(state=known.state, at=now, note=note)
        state = state.with_ticket(replace(known, history=(*known.history, event)))
    else:
        state = tickets.move(state, known.id, TicketState.PENDING, now, note)
    ticket = state.tickets[known.id]
    deadline = _deadline(config, now)
    return state.with_ticket(replace(ticket, deadline_at=deadline, on_hold=None, not_before=None, reopened=True))


def _deadline(config: FederationConfig, now: float) -> float:
    return now + config.forgetting.deadline_days * 86400


def _note(receipt: ReceiptContent) -> str:
    return f"reopened: completed on {receipt.ticket.completed_at}, but the state was restored from an older backup"


def _without_samples(client: str, membership: int, now: float) -> Member:
    return Member(
        name=client,
        membership=membership,
        status=MemberStatus.ACTIVE,
        samples=0,
        holdout=0,
        generation=0,
        session="",
        instance="",
        device="",
        joined_at=now,
    )
