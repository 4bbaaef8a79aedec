"""Messages that show rounds, models and clients to the operator."""

from __future__ import annotations

from puf_common.v1 import operator_pb2 as op
from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.state.models import ModelVersion
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import Round, RoundRecord
from puf_server.core.state.state import State
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
        bytes_down=presence.nbytes_down,
        bytes_up=sum(u.nbytes for u in updates),
        samples_processed=sum(u.samples_processed for u in updates),
        tickets=current.tickets,
    )


def record_info(record: RoundRecord) -> op.RoundInfo:
    """A committed round."""
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
    )


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


def client_info(name: str, state: State, presence: Presence, config: FederationConfig, now: float) -> op.ClientInfo:
    m = state.members[name]
    leaving = any(t.client == name and t.membership == m.membership and t.waiting for t in state.tickets.values())
    return op.ClientInfo(
        name=m.name,
        membership=m.membership,
        status="leaving" if leaving else "held" if m.on_hold or m.outweighs else m.status,
        alive=roster.worker_alive(presence, name, config, now),
        samples=m.samples,
        holdout_samples=m.holdout,
        first_round=m.first_round,
        last_round=m.last_round,
        device=m.device,
        activity=presence.activity.get(name, ""),
        silent_seconds=now - presence.seen[name] if name in presence.seen else -1.0,
        shard=state.leases.get(name),
        held=m.on_hold or ("announces more than its share of all samples" if m.outweighs else ""),
    )
