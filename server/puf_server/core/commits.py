"""The commit of a folded round: its model version, its record, and the members that took part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from puf_server.core import norm_bounds, streams
from puf_server.core.state.members import CountedUpdate, Member
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.rounds import Round, RoundKind, RoundPhase, RoundRecord
from puf_server.core.state.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """The file of a folded model."""

    digest: str
    nbytes: int
    blake3: str = ""


def commit(state: State, file: ModelFile, status: ModelStatus, now: float, nbytes_down: int = 0) -> State:
    """Makes the round's result a model version. Of its updates, counts, median norms and digests are kept."""
    current = state.round
    if current is None or current.phase is not RoundPhase.FOLDING:
        raise AssertionError("only a round that is being folded can be committed")
    version = state.newest + 1
    model = ModelVersion(
        version=version,
        round=current.number,
        digest=file.digest,
        nbytes=file.nbytes,
        status=status,
        created_at=now,
        blake3=file.blake3,
    )
    state = replace(
        state,
        version=version if current.step.last else state.version,
        number=current.number,
        attempt=0,
        trained=state.trained + (current.kind is RoundKind.TRAIN),
        decays=state.decays + (current.kind in (RoundKind.TRAIN, RoundKind.RECOVER) or current.step.decays),
        streams=streams.name_of(state, current.kind, current.method) if current.step.last else state.streams,
        round=None,
        members=_took_part(state.members, current),
        records={**state.records, current.number: _record(current, version, now, nbytes_down)},
    )
    return state.with_model(model).note(
        "round.committed", now, round=current.number, kind=current.kind.value, version=version, digest=file.digest
    )


def _record(current: Round, version: int, now: float, nbytes_down: int) -> RoundRecord:
    updates = current.received.values()
    losses = [(u.train_loss, u.samples) for u in updates if u.train_loss is not None]
    weight = sum(n for _, n in losses)
    usual = norm_bounds.of_round(current)
    return RoundRecord(
        number=current.number,
        attempt=current.attempt,
        kind=current.kind,
        base=current.base,
        version=version,
        expected=len(current.assignments),
        contributions=len(current.received),
        opened_at=current.opened_at,
        committed_at=now,
        nbytes_up=sum(u.wire_nbytes or u.nbytes for u in updates),
        nbytes_down=nbytes_down,
        samples_processed=sum(u.samples_processed for u in updates),
        train_loss=sum(loss * n for loss, n in losses) / weight if weight else None,
        tickets=current.tickets,
        samples=sum(u.samples for u in updates),
        norm=usual.parameters if usual else None,
        buffer_norm=usual.buffers if usual else None,
        closed_at=current.closed_at,
    )


def _took_part(members: Mapping[str, Member], current: Round) -> dict[str, Member]:
    """The members, with this round as the newest one for those whose update entered it, negated ones excepted.

    The digests of the updates replace those of the member's round before.
    """
    changed = dict(members)
    for assignment in current.assignments:
        member = changed.get(assignment.client)
        update = current.received.get(assignment.key)
        if update is None or member is None or member.membership != assignment.membership:
            continue
        named = CountedUpdate(round=current.number, attempt=current.attempt, part=assignment.part, digest=update.digest)
        member = replace(member, counted=(*(c for c in member.counted if c.round == current.number), named))
        if not assignment.negated:
            member = replace(
                member,
                first_round=member.first_round or current.number,
                last_round=current.number,
                last_samples=update.samples,
            )
        changed[member.name] = member
    return changed
