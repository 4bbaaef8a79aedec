"""A backup must not un-forget: receipts shown to a state that is older than what they tell of.

A receipt proves that its ticket was completed. Where the state knows the ticket as completed, or has it on its way, all
is well. Where the state knows nothing of it, the state is older, and its models still know the client: the ticket is
opened again under its old name, and every model since the client's first round is withdrawn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from puf_common.dates import from_utc
from puf_common.errors import TransferCorrupted
from puf_common.receipts.content import ReceiptContent
from puf_server.core import rounds
from puf_server.core.config import FederationConfig
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.state import State
from puf_server.core.state.tickets import FiledBy, Flip, Mode, Request, Scope, Ticket, TicketEvent, TicketState

__all__ = ["reopen", "restored"]


def restored(state: State, now: float, **facts: Any) -> State:
    """A state that comes from a backup: updates are not in it, so the round under way is asked for again."""
    state = rounds.abandon(state, now, "the state was restored from a backup, which holds no updates")
    return state.note("federation.restored", now, **facts)


def reopen(state: State, config: FederationConfig, receipt: ReceiptContent, now: float) -> tuple[State, bool, str]:
    """The state after a receipt was shown (verified, and this federation's), whether it opened the ticket, and why."""
    ticket_id, client, membership = receipt.ticket.id, receipt.ticket.client, receipt.ticket.membership
    known = state.tickets.get(ticket_id)
    if known is not None:
        if known.state in (TicketState.FAILED, TicketState.WITHDRAWN):
            raise TransferCorrupted(f"ticket {ticket_id} is {known.state} here: the receipt tells of another history")
        return state, False, f"ticket {ticket_id} is {known.state} here: nothing to do"
    member = state.members.get(client)
    if member is not None and member.membership != membership:
        # No line in the audit log: nothing changes, and the same receipt can be shown any number of times.
        return state, False, f"this state holds nothing of membership {membership} of {client}: nothing to forget"
    if member is None:
        # It joined after the backup: nothing of it is here, but its name must not come back by itself either. The ticket
        # completes at once, as one that has nothing to forget.
        member = _stranger(client, membership, now)
        state = state.with_member(member)
    ticket = _again(receipt, config, now)
    asked = ticket.request
    rest = asked.retain_samples or 0
    if not ticket.whole_client and member.samples == ticket.forget_samples + rest:
        state = state.with_member(replace(member, samples=rest))
    state = _withdraw_all(state.with_ticket(ticket), member.first_round)
    state = rounds.drop_client(state, client, now)
    why = "the state was restored from a backup older than its completion"
    state = state.note("ticket.reopened", now, ticket=ticket_id, client=client, scope=asked.scope, why=why)
    return state, True, f"ticket {ticket_id} is open again: {why}"


def _again(receipt: ReceiptContent, config: FederationConfig, now: float) -> Ticket:
    """The ticket as it was filed. Its deadline counts from now: the old one could not be kept."""
    filed, method = receipt.ticket, receipt.method
    note = f"reopened: completed on {filed.completed_at}, but the state was restored from an older backup"
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
            kappa=method.kappa,
            eta_u=method.eta_u,
            epochs=method.epochs or config.forgetting.epochs,
            forget_samples=filed.forget_samples,
            retain_samples=filed.retain_samples,
            reference=filed.reference,
            filed_by=FiledBy(filed.filed_by),
            filed_at=filed_at,
            received_at=received_at,
        ),
        deadline_at=now + config.forgetting.deadline_days * 86400,
        history=(TicketEvent(state=TicketState.PENDING, at=now, note=note),),
        reopened=True,
    )


def _withdraw_all(state: State, since_round: int) -> State:
    """Unlike at APPLIED there is no newer model to go on with: the newest one knows the client, too."""
    if not since_round:
        return state
    models = {
        v: replace(m, status=ModelStatus.WITHDRAWN)
        if m.round >= since_round and m.status is not ModelStatus.DELETED
        else m
        for v, m in state.models.items()
    }
    return replace(state, models=models)


def _stranger(client: str, membership: int, now: float) -> Member:
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
