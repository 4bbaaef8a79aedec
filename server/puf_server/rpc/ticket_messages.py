"""Conversion of a ticket to its message."""

from __future__ import annotations

from puf_common.v1 import tickets_pb2 as tk
from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.state.measurements import Measurement
from puf_server.core.state.presence import Presence
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Dose, Strength, Ticket
from puf_server.core.unlearning import recovery
from puf_server.core.unlearning.request_verdict import left_of, verdict
from puf_server.rpc import messages


def ticket(t: Ticket, state: State, presence: Presence, config: FederationConfig, now: float) -> tk.Ticket:
    """A ticket as its client and the operator see it."""
    asked, applied, outcome = t.request, t.applied, t.outcome
    clients = applied.score_clients if applied else 0
    measurements = applied.measurements if applied else {}
    return tk.Ticket(
        id=t.id,
        client=t.client,
        membership=t.membership,
        request=_request(t),
        state=_ticket_state(t.state),
        history=[tk.TicketStep(state=_ticket_state(s.state), at=s.at, note=s.note) for s in t.history],
        deadline_at=t.deadline_at,
        applied_round=applied.round if applied else 0,
        scale=(applied.scale or 0.0) if applied else 0.0,
        version_before=applied.version_before if applied else None,
        version_unlearned=applied.version_unlearned if applied else None,
        version_recovered=t.version_recovered,
        recovery_rounds=applied.recovery_rounds if applied else 0,
        recovered=outcome.recovered if outcome else None,
        score_before=messages.score(applied.score_before if applied else None, clients),
        score_unlearned=messages.score(applied.score_unlearned if applied else None, clients),
        score_recovered=messages.score(outcome.score_recovered if outcome else None, clients),
        deleted_versions=outcome.deleted_versions if outcome else (),
        method=applied.method if applied else "",
        worker_alive=roster.worker_alive(presence, t.client, config, now),
        attempts=t.attempts,
        measurements=[_measurement(v, measurements[v]) for v in sorted(measurements)],
        retained=[retained for v in sorted(set(t.versions)) if (retained := _retained(state, v)) is not None],
        doses=[
            tk.Dose(round=d.round, kappa=d.kappa, gap=messages.gap_pb(d.gap), score=d.score or 0.0, hold=d.hold)
            for d in (applied.doses if applied else _doses(state, t))
        ],
        fixed_because=t.fixed.because if t.fixed else "",
        recovery_end=(outcome.ended or "") if outcome else "",
        escalated=t.escalated or "",
        retained_pending=recovery.still_measured(state, t),
        filed_by=asked.filed_by,
        fallback=t.fallback or "",
        taken_over=t.taken_over or "",
        took_over=t.took_over,
        deleted_records=applied.deleted_records if applied else 0,
        deleted_bytes=applied.deleted_bytes if applied else 0,
        verdict=verdict(t) or "",
        fraction_left=messages.gap_pb(left_of(t)),
        unlearned_samples=applied.unlearned.samples if applied and applied.unlearned else 0,
        unlearned_digest=bytes.fromhex(applied.unlearned.digest) if applied and applied.unlearned else b"",
        held=(t.on_hold if t.waiting else state.recovery.on_hold if t.recovering and state.recovery else None) or "",
    )


def _request(t: Ticket) -> tk.UnlearningRequest:
    asked = t.request
    strength = tk.Strength(epochs=asked.epochs)
    if asked.strength is Strength.AUTO:
        strength.auto = True
    elif asked.kappa is not None:
        strength.kappa = asked.kappa
    elif asked.eta_u is not None:
        strength.eta_u = asked.eta_u
    return tk.UnlearningRequest(
        request_key=asked.key,
        scope=f"SCOPE_{asked.scope.upper()}",
        mode=f"MODE_{asked.mode.upper()}",
        flip=f"FLIP_{asked.flip.upper()}",
        strength=strength,
        forget_samples=t.forget_samples,
        retain_samples=asked.retain_samples or 0,
        reference=asked.reference,
        received_at=asked.received_at,
    )


def _doses(state: State, t: Ticket) -> tuple[Dose, ...]:
    """The doses so far of a ticket that is being served."""
    return state.job.doses.get(t.id, ()) if state.job else ()


def _retained(state: State, version: int) -> tk.RetainedSums | None:
    """What the retained clients measured of a version; None if nothing."""
    model = state.models.get(version)
    if model is None or (model.training is None and (model.score is None or model.score.classes is None)):
        return None
    return tk.RetainedSums(
        version=version,
        training=messages.sums_pb(model.training),
        holdout=messages.table_pb(model.score.classes if model.score else None),
    )


def _measurement(version: int, found: Measurement) -> tk.Measurement:
    return tk.Measurement(
        version=version,
        forget=messages.sums_pb(found.forget),
        holdout=messages.sums_pb(found.holdout),
        yeom=messages.attack_pb(found.yeom),
        song=messages.attack_pb(found.song),
        gap=messages.gap_pb(found.gap),
        own=messages.ranks_pb(found.own),
        pool=messages.ranks_pb(found.pool),
    )


def _ticket_state(value: str) -> str:
    return f"TICKET_STATE_{value.upper()}"
