"""Builds the content of the receipt of a completed ticket from the state and the audit log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from puf_common.dates import to_utc
from puf_common.errors import NotNow
from puf_common.receipts.content import (
    STAGES,
    AttackFacts,
    AuditHead,
    Backup,
    ClientMeasurement,
    Cost,
    Costs,
    DeletedHistory,
    Export,
    FederationFacts,
    HistoryEntry,
    MeasuredByClient,
    MeasuredByOthers,
    MemberShare,
    MethodFacts,
    ModelFacts,
    ReceiptContent,
    RoundFacts,
    Score,
    Stages,
    TicketFacts,
)
from puf_common.receipts.evidence import STATEMENT, Attack, judge, wilson
from puf_server.core.audit_chain import AuditEntry, Head
from puf_server.core.config import FederationConfig
from puf_server.core.state.measurements import Sums
from puf_server.core.state.rounds import RoundKind, RoundRecord
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket, TicketState

__all__ = ["EVENTS", "build", "known_versions"]

# Audit lines that a receipt is made from.
EVENTS = ("model.exported", "backup.made")


def build(
    state: State,
    config: FederationConfig,
    ticket: Ticket,
    *,
    head: Head,
    lines: Sequence[AuditEntry] = (),
    now: float,
    software: str,
) -> ReceiptContent:
    """The content of a receipt. `lines` are the audit log's exports and backups."""
    if ticket.state is not TicketState.COMPLETED:
        raise NotNow(
            f"ticket {ticket.id} is {ticket.state}: there is a receipt once it is completed",
            ticket=ticket.id,
            state=ticket.state,
        )
    knew = known_versions(state, ticket)
    return ReceiptContent(
        statement=f"Forgetting by this method is {STATEMENT}.",
        issued_at=_date(now),
        software=f"puf {software}",
        federation=FederationFacts(id=config.id, title=config.title, model=config.model, task=config.task),
        ticket=_ticket(ticket),
        method=_method(state, ticket),
        rounds=RoundFacts(
            applied=ticket.applied_round if ticket.version_unlearned is not None else None,
            recovery=ticket.recovery_rounds,
            recovered=ticket.recovered,
        ),
        models=Stages[ModelFacts](**{stage: _model(state, getattr(ticket, f"version_{stage}")) for stage in STAGES}),
        deleted_history=DeletedHistory(records=ticket.deleted_records, bytes=ticket.deleted_bytes),
        deleted_models=tuple(_model(state, v) for v in ticket.deleted_versions),
        exports=tuple(
            Export(at=_date(at), version=facts["version"], digest=facts["digest"])
            for at, facts in _facts(lines, "model.exported")
            if facts["version"] in knew
        ),
        backups=tuple(
            Backup(at=_date(at), digest=facts["digest"], versions=tuple(sorted(knew.intersection(facts["versions"]))))
            for at, facts in _facts(lines, "backup.made")
            if knew.intersection(facts["versions"])
        ),
        costs=_costs(state, ticket),
        measured_by_others=MeasuredByOthers(
            by="the other clients, on data they hold back from training",
            clients=ticket.score_clients,
            **{stage: _score(getattr(ticket, f"score_{stage}")) for stage in STAGES},
        ),
        measured_by_client=MeasuredByClient(
            by="the client itself, on its own data; the server passes these figures on and cannot check them",
            **{stage: _measured(ticket, getattr(ticket, f"version_{stage}")) for stage in STAGES},
            verdict=_verdict(ticket),
        ),
        audit=AuditHead(line=head.number, hash=head.hash.hex()),
    )


def _ticket(ticket: Ticket) -> TicketFacts:
    of_samples = ticket.scope == "samples"
    return TicketFacts(
        id=ticket.id,
        client=ticket.client,
        membership=ticket.membership,
        request_key=ticket.request_key,
        scope=ticket.scope,
        forget_samples=ticket.forget_samples if of_samples else None,
        retain_samples=ticket.retain_samples if of_samples else None,
        reference=ticket.reference,
        filed_by=ticket.filed_by,
        received_at=_date(ticket.received_at),
        filed_at=_date(ticket.filed_at),
        deadline_at=_date(ticket.deadline_at),
        applied_at=_date(ticket.applied_at),
        completed_at=_date(ticket.completed_at),
        history=tuple(HistoryEntry(at=_date(s.at), state=s.state.value, note=s.note) for s in ticket.history),
    )


def _method(state: State, ticket: Ticket) -> MethodFacts:
    is_puf = ticket.kappa is not None or ticket.eta_u is not None
    return MethodFacts(
        name=ticket.method,
        mode=ticket.mode if is_puf else None,
        flip=ticket.flip if is_puf else None,
        kappa=ticket.kappa,
        eta_u=ticket.eta_u,
        epochs=ticket.epochs if is_puf else None,
        scale=ticket.scale,
        attempts=ticket.attempts,
        discloses=_discloses(state, ticket),
    )


def known_versions(state: State, ticket: Ticket) -> set[int]:
    """Versions that knew the client: from its first round up to the one before its unlearning, deleted ones too."""
    if ticket.version_before is None:
        return set()
    known = {ticket.version_before, *ticket.deleted_versions}
    member = state.members.get(ticket.client)
    if member is not None and member.membership == ticket.membership and member.first_round:
        known |= {v for v, m in state.models.items() if m.round >= member.first_round and v <= ticket.version_before}
    return known


def _verdict(ticket: Ticket) -> str | None:
    """Of the newest of the ticket's models that its owner could judge: nobody meets the older ones any more."""
    for stage in reversed(STAGES[1:]):
        version = getattr(ticket, f"version_{stage}")
        found = ticket.evidence.get(version) if version is not None else None
        judged = judge((found.yeom, found.song)) if found else None
        if judged is not None:
            return judged.value
    return None


def _measured(ticket: Ticket, version: int | None) -> ClientMeasurement | None:
    if version is None or version not in ticket.measurements:
        return None
    found = ticket.evidence.get(version)
    judged = judge((found.yeom, found.song)) if found else None
    forget = _score(ticket.measurements[version])
    assert forget is not None
    return ClientMeasurement(
        version=version,
        forget=forget,
        holdout=_score(found.holdout) if found else None,
        yeom=_attack(found.yeom) if found else None,
        song=_attack(found.song) if found else None,
        verdict=judged.value if judged else None,
    )


def _attack(attack: Attack | None) -> AttackFacts | None:
    if attack is None:
        return None
    return AttackFacts(
        threshold=_short(attack.threshold),
        forget=_members(attack.forget_members, attack.forget_samples),
        holdout=_members(attack.holdout_members, attack.holdout_samples),
        difference=_interval(attack.difference),
        verdict=attack.verdict.value,
    )


def _members(members: int, samples: int) -> MemberShare:
    return MemberShare(
        members=members, samples=samples, share=_short(members / samples), interval=_interval(wilson(members, samples))
    )


def _score(sums: Sums | None) -> Score | None:
    if sums is None:
        return None
    return Score(
        samples=sums.samples,
        accuracy=_short(sums.score),
        interval=_interval(wilson(sums.score_sum, sums.samples)),
        loss=_short(sums.loss),
    )


def _costs(state: State, ticket: Ticket) -> Costs:
    """Tensor bytes between server and clients, and samples trained on, in the rounds that served the ticket."""
    last = ticket.version_recovered or 0
    unlearning = [
        r
        for r in state.records.values()
        if ticket.version_unlearned is not None and (r.number == ticket.applied_round or ticket.id in r.tickets)
    ]
    recovery = [
        r
        for r in state.records.values()
        if r.kind is RoundKind.RECOVER and r.number > ticket.applied_round and r.version <= last
    ]
    return Costs(
        unlearning=_cost(unlearning),
        recovery=_cost(recovery),
        requests_served_together=max((len(r.tickets) for r in unlearning), default=0) or None,
    )


def _cost(records: Sequence[RoundRecord]) -> Cost:
    return Cost(
        rounds=len(records),
        bytes_to_clients=sum(r.nbytes_down for r in records),
        bytes_from_clients=sum(r.nbytes_up for r in records),
        samples_trained=sum(r.samples_processed for r in records),
    )


def _model(state: State, version: int | None) -> ModelFacts | None:
    if version is None or version not in state.models:
        return None
    model = state.models[version]
    return ModelFacts(version=version, round=model.round, digest=model.digest, status=model.status.value)


def _facts(lines: Iterable[AuditEntry], event: str) -> list[tuple[float, dict[str, Any]]]:
    return [(line.at, json.loads(line.facts)) for line in lines if line.event == event]


def _date(at: float) -> str | None:
    return to_utc(at) if at else None


def _interval(limits: tuple[float, float]) -> tuple[float, float]:
    low, high = limits
    return _short(low), _short(high)


def _short(value: float) -> float:
    return round(value, 6)


def _discloses(state: State, ticket: Ticket) -> str | None:
    """What the models before and after tell together about the data that was forgotten; None where little."""
    if ticket.method != "puf-special":
        return None
    targets = sum(t.applied_round == ticket.applied_round and t.method == ticket.method for t in state.tickets.values())
    what = "the target's update" if targets == 1 else f"the sum of the updates of {targets} targets"
    return f"whoever holds the models before and right after unlearning can compute {what} exactly"
