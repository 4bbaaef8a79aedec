"""Messages that show rounds, models and clients to the operator."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from puf_common.audit_chain import AuditEntry
from puf_common.errors import InvalidArgument
from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelVersion
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import Round, RoundRecord
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket
from puf_server.rpc import messages


def round_info(current: Round, presence: Presence) -> op.RoundInfo:
    """The open round."""
    updates = current.received.values()
    return op.RoundInfo(
        number=current.number,
        attempt=current.attempt,
        kind=current.kind,
        phase=current.phase,
        base_version=current.base,
        expected=len(current.assignments),
        received=len(current.received),
        missing=sorted({assignment.client for assignment in current.missing}),
        opened_at=current.opened_at,
        bytes_down=presence.nbytes_down + presence.nbytes_elsewhere,
        bytes_up=sum(u.nbytes for u in updates),
        samples_processed=sum(u.samples_processed for u in updates),
        tickets=current.tickets,
        closed_at=current.closed_at or 0.0,
    )


def record_info(record: RoundRecord, model: ModelVersion | None) -> op.RoundInfo:
    """A committed round. `model` is the version that it made."""
    return op.RoundInfo(
        number=record.number,
        attempt=record.attempt,
        kind=record.kind,
        phase="committed",
        base_version=record.base,
        expected=record.expected,
        received=record.contributions,
        opened_at=record.opened_at,
        committed_at=record.committed_at,
        bytes_down=record.nbytes_down,
        bytes_up=record.nbytes_up,
        samples_processed=record.samples_processed,
        train_loss=float("nan") if record.train_loss is None else record.train_loss,
        tickets=record.tickets,
        closed_at=record.closed_at or 0.0,
        version=record.version,
        score=messages.score(model.score, model.score_clients) if model else None,
    )


def selected_rounds(request: op.ListRoundsRequest, state: State, presence: Presence) -> Iterator[op.RoundInfo]:
    """The open round and the committed ones, newest first, that the request selects."""
    if state.round is not None and not request.before and request.kind in ("", state.round.kind):
        yield round_info(state.round, presence)
    for number in sorted(state.records, reverse=True):
        record = state.records[number]
        if (not request.before or number < request.before) and request.kind in ("", record.kind):
            yield record_info(record, state.models.get(record.version))


def selected_tickets(request: op.ListTicketsRequest, state: State) -> list[Ticket]:
    """The tickets that the request selects, newest first."""
    if unknown := [s for s in request.states if s not in tk.TicketState.values()]:
        raise InvalidArgument(f"there is no state {unknown[0]} of a ticket")
    states = {tk.TicketState.Name(s).removeprefix("TICKET_STATE_").lower() for s in request.states}
    chosen = [
        t for t in state.tickets.values() if request.ticket_id in ("", t.id) and (not states or t.state.value in states)
    ]
    return sorted(chosen, key=lambda t: -t.request.filed_at)


def selected_clients(
    request: op.ListClientsRequest, state: State, presence: Presence, config: FederationConfig, now: float
) -> list[str]:
    """The names that the request selects, sorted."""
    text = request.name.casefold()
    names = sorted(name for name in state.members if text in name.casefold())
    if not request.status:
        return names

    def matches(name: str) -> bool:
        if request.status in ("alive", "absent"):
            alive = roster.worker_alive(presence, name, config, now)
            return state.members[name].status is MemberStatus.ACTIVE and alive == (request.status == "alive")
        return client_status(name, state) == request.status

    return [name for name in names if matches(name)]


def model_info(model: ModelVersion) -> op.ModelInfo:
    return op.ModelInfo(
        version=model.version,
        round=model.round,
        digest=bytes.fromhex(model.digest),
        byte_length=model.nbytes,
        status=model.status,
        created_at=model.created_at,
        score=messages.score(model.score, model.score_clients),
    )


def audit_entry(entry: AuditEntry) -> op.AuditEntry:
    return op.AuditEntry(number=entry.number, at=entry.at, event=entry.event, facts=entry.facts, hash=entry.hash)


def client_info(name: str, state: State, presence: Presence, config: FederationConfig, now: float) -> op.ClientInfo:
    m, silent = state.members[name], presence.silent_seconds(name, now)
    return op.ClientInfo(
        name=m.name,
        membership=m.membership,
        status=client_status(name, state),
        alive=roster.worker_alive(presence, name, config, now),
        samples=m.samples,
        holdout_samples=m.holdout,
        first_round=m.first_round,
        last_round=m.last_round,
        device=m.device,
        activity=presence.activity.get(name, ""),
        silent_seconds=silent if isfinite(silent) else -1.0,
        shard=state.leases.get(name),
        held=m.on_hold or ("announces more than its share of all samples" if m.outweighs else ""),
    )


def client_status(name: str, state: State) -> str:
    """The status of a name in ClientInfo."""
    m = state.members[name]
    if any(t.client == name and t.membership == m.membership and t.waiting for t in state.tickets.values()):
        return "leaving"
    return "held" if m.on_hold or m.outweighs else m.status
