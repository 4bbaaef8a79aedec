"""What follows when the target's data can still be told from unseen data: the operator's other method, once.

All tickets of the recovery go through it together. Their targets have left, so the method must not need them.
"""

from __future__ import annotations

from dataclasses import replace

from puf_common.receipts.evidence import Verdict
from puf_common.receipts.verdict import judge
from puf_server.core import methods, tickets
from puf_server.core.config import FederationConfig
from puf_server.core.state.jobs import UnlearningJob
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Applied, RequestForm, Ticket, TicketState


def due(state: State, config: FederationConfig) -> bool:
    """Whether a target found its data still known, and the policy names a method that can serve all tickets."""
    if state.recovery is not None and state.recovery.reset:
        # The model has its initial weights: no data is known to it.
        return False
    name = config.forgetting.escalate
    open_tickets = [t for t in state.tickets.values() if t.recovering]
    if not name or any(t.escalated for t in open_tickets):
        return False
    method = methods.by_name(config.forgetting, name)
    forms = [RequestForm(key=t.request.key, scope=t.request.scope, by=t.request.filed_by) for t in open_tickets]
    served = all(
        method.refuse(t.client, form, state, config) is None for t, form in zip(open_tickets, forms, strict=True)
    )
    return served and any(_still_known(t) for t in open_tickets)


def begin(state: State, config: FederationConfig, now: float) -> State:
    """Ends recovery and starts a job with the other method for all its tickets."""
    recovery, name = state.recovery, config.forgetting.escalate
    assert recovery is not None
    ids = tuple(t.id for t in state.tickets.values() if t.recovering)
    for ticket_id in ids:
        why = f"the data can still be told from unseen data: {name} follows"
        state = tickets.move(state, ticket_id, TicketState.SCHEDULED, now, why, escalated=name)
    job = UnlearningJob(
        tickets=ids, mode=None, evaluators=recovery.evaluators, before=recovery.before, measured=True, method=name
    )
    return replace(state, recovery=None, job=job)


def first_round(state: State, first: Applied) -> int:
    """The round of the oldest model that the second method replaces."""
    before = state.models.get(first.version_before) if first.version_before is not None else None
    return before.round if before else first.round


def applied_again(first: Applied, again: Applied) -> Applied:
    """How a ticket was applied by a second method. What the target measured of the model before stays."""
    kept = {v: m for v, m in first.measurements.items() if v == first.version_before}
    return replace(
        again,
        scale=first.scale,
        version_before=first.version_before,
        score_before=first.score_before,
        score_clients=first.score_clients,
        recovery_rounds=first.recovery_rounds,
        measurements=kept,
        deleted_records=first.deleted_records,
        deleted_bytes=first.deleted_bytes,
        doses=first.doses,
        unlearned=first.unlearned,
    )


def _still_known(ticket: Ticket) -> bool:
    applied = ticket.applied
    if applied is None or applied.watch is None or applied.version_before is None:
        return False
    found = judge(*(applied.measurements.get(v) for v in (applied.version_before, applied.watch.version)))
    return found is not None and found.verdict is Verdict.STILL_KNOWN
