"""Builds the content of the receipt of a completed ticket from the state and the audit log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from puf_common.audit_chain import AuditEntry, Head
from puf_common.dates import to_utc
from puf_common.errors import NotNow
from puf_common.receipts.content import (
    STAGES,
    AttackFacts,
    AuditHead,
    Backup,
    ClientMeasurement,
    ComparisonFacts,
    Cost,
    Costs,
    DeletedHistory,
    DoseFacts,
    Export,
    FederationFacts,
    GapFacts,
    HistoryEntry,
    MeasuredByClient,
    MeasuredByOthers,
    MemberShare,
    MethodFacts,
    ModelFacts,
    RankFacts,
    ReceiptContent,
    RoundFacts,
    Score,
    Stages,
    TicketFacts,
    UnlearnedSamplesFacts,
)
from puf_common.receipts.evidence import STATEMENT, Z975, Attack, Finding, wilson, worst
from puf_common.receipts.gap import Gap
from puf_common.receipts.ranks import RankComparison
from puf_common.receipts.verdict import TOLERATED, Z_ATTACK, Z_LIKE, Z_RANKS, Judgement, finding
from puf_server.core.config import FederationConfig
from puf_server.core.state.measurements import Measurement, Sums
from puf_server.core.state.rounds import RoundKind, RoundRecord
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Applied, Dose, Outcome, Strength, Ticket, TicketState
from puf_server.core.unlearning.request_verdict import judgement, left_of

# Audit entries that a receipt is made from.
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
    applied, outcome = ticket.applied, ticket.outcome
    assert applied is not None
    assert outcome is not None
    versions = dict(
        zip(STAGES, (applied.version_before, applied.version_unlearned, outcome.version_recovered), strict=True)
    )
    scores = dict(zip(STAGES, (applied.score_before, applied.score_unlearned, outcome.score_recovered), strict=True))
    contained = known_versions(state, ticket)
    return ReceiptContent(
        statement=f"Forgetting by this method is {STATEMENT}.",
        issued_at=_date(now),
        software=f"puf {software}",
        federation=FederationFacts(
            id=config.id,
            title=config.title,
            model=config.model,
            task=config.task,
            base_digest=config.base_digest or None,
        ),
        ticket=_ticket(ticket, applied, outcome),
        method=_method(state, ticket, applied),
        rounds=RoundFacts(
            applied=applied.round if applied.version_unlearned is not None else None,
            recovery=applied.recovery_rounds,
            recovered=outcome.recovered,
            ended=outcome.ended.value if outcome.ended else None,
        ),
        models=Stages[ModelFacts](**{stage: _model(state, v) for stage, v in versions.items()}),
        deleted_history=DeletedHistory(records=applied.deleted_records, bytes=applied.deleted_bytes),
        deleted_models=tuple(_model(state, v) for v in outcome.deleted_versions),
        exports=_exports(lines, contained),
        backups=_backups(lines, contained),
        costs=_costs(state, ticket.id, applied, outcome),
        measured_by_others=MeasuredByOthers(
            by="the other clients, on data they hold back from training",
            clients=applied.score_clients,
            **{stage: _score(score) for stage, score in scores.items()},
        ),
        measured_by_client=_measured_by_client(ticket, applied, outcome, versions),
        audit=AuditHead(line=head.number, hash=head.hash.hex()),
        unlearned_samples=_unlearned(applied),
    )


def _unlearned(applied: Applied) -> UnlearnedSamplesFacts | None:
    if applied.unlearned is None:
        return None
    return UnlearnedSamplesFacts(
        by="the client itself; the server passes these figures on and cannot check them",
        samples=applied.unlearned.samples,
        digest=applied.unlearned.digest or None,
    )


def _exports(lines: Iterable[AuditEntry], contained: set[int]) -> tuple[Export, ...]:
    return tuple(
        Export(at=_date(at), version=facts["version"], digest=facts["digest"])
        for at, facts in _facts(lines, "model.exported")
        if facts["version"] in contained
    )


def _backups(lines: Iterable[AuditEntry], contained: set[int]) -> tuple[Backup, ...]:
    found = (
        (at, facts, sorted(contained.intersection(facts["versions"]))) for at, facts in _facts(lines, "backup.made")
    )
    return tuple(
        Backup(at=_date(at), digest=facts["digest"], versions=tuple(versions))
        for at, facts, versions in found
        if versions
    )


def _ticket(ticket: Ticket, applied: Applied, outcome: Outcome) -> TicketFacts:
    asked = ticket.request
    return TicketFacts(
        id=ticket.id,
        client=ticket.client,
        membership=ticket.membership,
        request_key=asked.key,
        scope=asked.scope.value,
        forget_samples=asked.forget_samples,
        retain_samples=asked.retain_samples,
        reference=asked.reference,
        filed_by=asked.filed_by.value,
        received_at=_date(asked.received_at),
        filed_at=_date(asked.filed_at),
        deadline_at=_date(ticket.deadline_at),
        applied_at=_date(applied.at),
        completed_at=_date(outcome.completed_at),
        history=tuple(HistoryEntry(at=_date(s.at), state=s.state.value, note=s.note) for s in ticket.history),
        took_over=ticket.took_over or None,
        replaces=ticket.replaces or None,
    )


def _method(state: State, ticket: Ticket, applied: Applied) -> MethodFacts:
    asked = ticket.request
    adaptive = asked.strength is Strength.AUTO
    is_puf = adaptive or asked.kappa is not None or asked.eta_u is not None
    return MethodFacts(
        name=applied.method,
        mode=asked.mode.value if is_puf else None,
        flip=asked.flip.value if is_puf else None,
        kappa=ticket.kappa,
        eta_u=asked.eta_u,
        epochs=ticket.epochs if is_puf else None,
        scale=applied.scale or 0.0,
        attempts=ticket.attempts,
        discloses=_discloses(state, applied),
        strength=asked.strength.value if adaptive else None,
        doses=tuple(_dose(d) for d in applied.doses) or None,
        fixed_because=ticket.fixed.because if ticket.fixed else None,
        escalated=ticket.escalated,
    )


def _dose(dose: Dose) -> DoseFacts:
    gap = _gap(dose.gap)
    assert gap is not None
    return DoseFacts(round=dose.round, kappa=_short(dose.kappa), gap=gap)


def _gap(gap: Gap | None) -> GapFacts | None:
    return None if gap is None else GapFacts(value=_short(gap.value), error=_short(gap.error))


def known_versions(state: State, ticket: Ticket) -> set[int]:
    """Versions that contain the client, from its first round to the one before unlearning. Includes deleted ones."""
    before = ticket.applied.version_before if ticket.applied else None
    if before is None:
        return set()
    known = {before, *(ticket.outcome.deleted_versions if ticket.outcome else ())}
    member = state.members.get(ticket.client)
    if member is not None and member.membership == ticket.membership and member.first_round:
        known |= {v for v, m in state.models.items() if m.round >= member.first_round and v <= before}
    return known


def _measured_by_client(
    ticket: Ticket, applied: Applied, outcome: Outcome, versions: Mapping[str, int | None]
) -> MeasuredByClient:
    ranked = any(found.own or found.pool for found in applied.measurements.values())
    judged = judgement(ticket)
    verdict = (judged.verdict if judged else None) if ranked else _newest_finding(applied, outcome)
    return MeasuredByClient(
        by="the client itself, on its own data; the server passes these figures on and cannot check them",
        **{stage: _measured(applied, v) for stage, v in versions.items()},
        verdict=verdict.value if verdict else None,
        comparison=_comparison(judged) if judged else None,
        fraction_left=_gap(left_of(ticket)),
    )


def _newest_finding(applied: Applied, outcome: Outcome) -> Finding | None:
    """For owners that sent no ranks: what the attacks say of the newest model that the owner could measure."""
    for version in (outcome.version_recovered, applied.version_unlearned):
        found = applied.measurements.get(version) if version is not None else None
        judged = _attacks_finding(found) if found else None
        if judged is not None:
            return judged
    return None


def _attacks_finding(found: Measurement) -> Finding | None:
    return worst(attack.finding() for attack in (found.yeom, found.song) if attack is not None)


def _measured(applied: Applied, version: int | None) -> ClientMeasurement | None:
    if version is None or version not in applied.measurements:
        return None
    found = applied.measurements[version]
    judged = finding(found) or _attacks_finding(found)
    forget = _score(found.forget)
    assert forget is not None
    z = Z_ATTACK if found.own or found.pool else Z975
    return ClientMeasurement(
        version=version,
        forget=forget,
        holdout=_score(found.holdout),
        yeom=_attack(found.yeom, z),
        song=_attack(found.song, z),
        verdict=judged.value if judged else None,
        own=_ranks(found.own),
        pool=_ranks(found.pool),
        gap=_gap(found.gap),
    )


def _attack(attack: Attack | None, z: float) -> AttackFacts | None:
    if attack is None:
        return None
    return AttackFacts(
        threshold=_short(attack.threshold),
        forget=_members(attack.forget_members, attack.forget_samples),
        holdout=_members(attack.holdout_members, attack.holdout_samples),
        difference=_interval(attack.difference(z)),
        verdict=attack.finding(z).value,
    )


def _ranks(ranks: RankComparison | None) -> RankFacts | None:
    if ranks is None:
        return None
    return RankFacts(
        auc=_short(ranks.auc),
        interval=_interval(ranks.interval(Z_RANKS)),
        forget_samples=ranks.forget_samples,
        unseen_samples=ranks.unseen_samples,
        detectable=_short(ranks.detectable(Z_RANKS)),
    )


def _comparison(judged: Judgement) -> ComparisonFacts:
    return ComparisonFacts(
        source=judged.source.value,
        before=_short(judged.before.auc) if judged.before else None,
        after=_short(judged.after.auc),
        after_interval=_interval(judged.after.interval(Z_LIKE)),
        change=_interval(judged.change) if judged.change else None,
        forget_samples=judged.after.forget_samples,
        unseen_samples=judged.after.unseen_samples,
        detectable=_short(judged.after.detectable(Z_RANKS)),
        tolerated=TOLERATED,
        reason=judged.reason,
        figures=judged.figures,
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


def _costs(state: State, ticket_id: str, applied: Applied, outcome: Outcome) -> Costs:
    """Transferred tensor bytes and trained samples of the rounds that served the ticket."""
    last = outcome.version_recovered or 0
    unlearning = [
        r
        for r in state.records.values()
        if applied.version_unlearned is not None and (r.number == applied.round or ticket_id in r.tickets)
    ]
    recovery = [
        r
        for r in state.records.values()
        if r.kind is RoundKind.RECOVER and r.number > applied.round and r.version <= last
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


def _discloses(state: State, applied: Applied) -> str | None:
    """What the models before and after disclose together about the forgotten data; None for other methods than PUF-Special."""
    if applied.method != "puf-special":
        return None
    served = (t.applied for t in state.tickets.values() if t.applied is not None)
    targets = sum((a.round, a.method) == (applied.round, applied.method) for a in served)
    what = "the target's update" if targets == 1 else f"the sum of the updates of {targets} targets"
    return f"whoever holds the models before and right after unlearning can compute {what} exactly"
