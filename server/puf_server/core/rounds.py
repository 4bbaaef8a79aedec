"""A round, from opening to commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from puf_common.errors import Conflict, InvalidUpdate, StaleRound
from puf_common.receipts.gap import DoseReport
from puf_server.core import roster, streams
from puf_server.core.config import FederationConfig
from puf_server.core.state.members import CountedUpdate, Member
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import (
    Assignment,
    Part,
    ReceivedUpdate,
    Round,
    RoundKind,
    RoundPhase,
    Step,
)
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Flip


def _ordinary(members: Sequence[Member], config: FederationConfig) -> tuple[Assignment, ...]:
    return tuple(
        Assignment(
            client=m.name,
            membership=m.membership,
            part=Part.MAIN,
            samples=m.samples,
            epochs=float(config.recipe.epochs),
        )
        for m in members
    )


def ordinary_step(state: State, config: FederationConfig, members: Sequence[Member]) -> Step:
    """A round of training by these members on the newest model."""
    return Step(base=state.version, assignments=_ordinary(members, config), last=True)


def open_round(
    state: State,
    config: FederationConfig,
    kind: RoundKind,
    step: Step,
    now: float,
    *,
    method: str | None = None,
    targets: tuple[str, ...] = (),
) -> State:
    """Opens round `number + 1`. The cohort is part of the state, so it is on disk before any client is asked."""
    number, attempt = state.number + 1, state.attempt + 1
    if step.stream is None:
        step = replace(step, stream=streams.number_of(streams.name_of(state, kind, method), number))
    current = Round(
        number=number,
        attempt=attempt,
        kind=kind,
        step=step,
        lr=config.recipe.lr_at(state.decays + 1) if step.lr is None else step.lr,
        opened_at=now,
        deadline_at=_deadline(config, now),
        method=method,
        targets=targets,
    )
    state = replace(state, round=current, attempt=attempt)
    clients = sorted({a.client for a in step.assignments})
    return state.note("round.opened", now, round=number, attempt=attempt, kind=kind.value, clients=clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateHeader:
    """What a client states about an update before its tensors."""

    membership: int
    number: int
    attempt: int
    part: Part
    base: int
    samples: int
    applied_scale: float
    # Of a dose: the strength that the target chose, and what it measured.
    dose: DoseReport | None = None
    # What a target says about the samples that the update unlearns; 0 and empty if it says nothing.
    unlearned_samples: int = 0
    unlearned_digest: bytes = b""
    # Digest of the model that it was trained from; empty if the client does not state it.
    base_digest: bytes = b""


def expected_assignment(state: State, name: str, header: UpdateHeader) -> tuple[Round, Assignment]:
    """The open round and the assignment of an update. Refuses an update that no round expects."""
    current = state.round
    assignment = None
    if current is not None and (current.number, current.attempt) == (header.number, header.attempt):
        wanted = (header.membership, header.part)
        mine = (a for a in current.assignments if a.client == name)
        assignment = next((a for a in mine if (a.membership, a.part) == wanted), None)
    if current is None or assignment is None:
        raise StaleRound(
            f"no update of {name} is expected for round {header.number}, attempt {header.attempt}, part {header.part}",
            current_round=current.number if current else state.number,
            current_attempt=current.attempt if current else 0,
        )
    if current.phase is RoundPhase.FOLDING and assignment.key not in current.received:
        number = current.number
        raise StaleRound(f"round {number} has closed without this update of {name}", current_round=number + 1)
    return current, assignment


def check_header(current: Round, assignment: Assignment, header: UpdateHeader) -> None:
    """Refuses an update whose header does not fit its assignment, before a tensor byte is read."""
    if header.base != current.base:
        raise StaleRound(
            f"the update starts from model {header.base}, the round from {current.base}", current_round=current.number
        )
    # A client may not be able to train on samples that its ticket took over.
    least = assignment.samples - assignment.taken if current.denominator is not None else 1
    if not max(1, least) <= header.samples <= assignment.samples:
        raise InvalidUpdate(
            f"the update states {header.samples} samples, announced were {assignment.samples}",
            announced=assignment.samples,
        )
    _check_dose(assignment, header.dose)
    full = assignment.scale * header.dose.kappa if header.dose else assignment.scale
    wanted = full if assignment.flip is Flip.CLIENT else 1.0
    if header.applied_scale != wanted:
        raise InvalidUpdate(
            f"the update was scaled by {header.applied_scale!r}, assigned was {wanted!r} on the side of the "
            f"{assignment.flip}",
            assigned=wanted,
        )


def _check_dose(assignment: Assignment, dose: DoseReport | None) -> None:
    """Refuses a strength outside the assignment's limits, and one where none was to be chosen."""
    if (dose is not None) != (assignment.routine == "dose"):
        raise InvalidUpdate("an update states a chosen strength if and only if its routine is dose")
    if dose is None:
        return
    least, most = assignment.options["min_kappa"], assignment.options["max_kappa"]
    if dose.kappa == 0 and assignment.options.get("may_skip"):
        return
    if not least <= dose.kappa <= most:
        raise InvalidUpdate(
            f"the update was scaled by kappa {dose.kappa:g}; allowed is {least:g} to {most:g}", least=least, most=most
        )


def receive(state: State, name: str, header: UpdateHeader, update: ReceivedUpdate) -> tuple[State, bool]:
    """Records an update that is verified and on disk. The second value is True when it was recorded before."""
    if was_counted(state, name, header, update.digest):
        return state, True
    current, assignment = expected_assignment(state, name, header)
    check_header(current, assignment, header)
    known = current.received.get(assignment.key)
    if known is not None:
        if known.digest != update.digest:
            raise Conflict(f"{name} has already sent another update for round {current.number}", digest=known.digest)
        return state, True
    received = {**current.received, assignment.key: update}
    return replace(state, round=replace(current, received=received)), False


def was_counted(state: State, name: str, header: UpdateHeader, digest: str) -> bool:
    """Whether a committed round has summed this very update. Only the client's last such round is known."""
    member = state.members.get(name)
    if member is None or member.membership != header.membership:
        return False
    sent = CountedUpdate(round=header.number, attempt=header.attempt, part=header.part, digest=digest)
    return sent in member.counted


def close_if_due(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
    """Closes an ordinary round with all updates, or with a quorum when the rest is absent or late. Else repeats it."""
    current = state.round
    if current is None or current.phase is not RoundPhase.COLLECTING:
        return state
    if not current.assignments:
        return abandon(state, now, "no client is left in it")
    least = least_updates(current, config)
    if len(current.assignments) < least:
        return abandon(state, now, f"{len(current.assignments)} clients are left in it, the plan requires {least}")
    # Mostly the count tells that some are missing. This runs for every update.
    if len(current.received) >= len(current.assignments) and not current.missing:
        return close(state, now)
    if awaits(current, presence, config, now):
        return state
    if has_quorum(current, config):
        return close_without(state, now)
    return _repeat(state, presence, config, current, now)


def close_without(state: State, now: float) -> State:
    """Closes the round with the updates that came, and notes whose are missing."""
    current = state.round
    assert current is not None
    return close(state.note("round.closed_without", now, round=current.number, clients=_names(current.missing)), now)


def hopeful(current: Round, presence: Presence, config: FederationConfig, now: float) -> Iterator[Assignment]:
    """Assignments whose update may still come in time: not declined, not late, the client alive."""
    if current.deadline_at is not None and now >= current.deadline_at:
        return
    for s in current.assignments:
        if s.key in current.received or s.key in current.declined:
            continue
        if roster.worker_alive(presence, s.client, config, now):
            yield s


def awaits(current: Round, presence: Presence, config: FederationConfig, now: float) -> bool:
    """Whether an update may still come in time. Runs for every update, and mostly looks at a few assignments."""
    return any(True for _ in hopeful(current, presence, config, now))


def stalled(state: State, presence: Presence, config: FederationConfig, now: float) -> bool:
    """Whether the open round can neither close nor expect updates. A request to be forgotten must not wait for it."""
    current = state.round
    if current is None or current.phase is not RoundPhase.COLLECTING:
        return False
    return not awaits(current, presence, config, now) and not has_quorum(current, config)


def has_quorum(current: Round, config: FederationConfig) -> bool:
    wanted = ceil(config.plan.quorum * len(current.assignments))
    return len(current.received) >= max(wanted, least_updates(current, config))


def least_updates(current: Round, config: FederationConfig) -> int:
    """The updates without which a round does not commit, however many clients have left it.

    For a training round this is the quorum of the smallest cohort that the plan permits. A recovery round serves a
    request to be forgotten: it does not wait for new clients.
    """
    plan = config.plan
    return ceil(plan.quorum * ceil(plan.participation * plan.min_clients)) if current.kind is RoundKind.TRAIN else 1


def _repeat(state: State, presence: Presence, config: FederationConfig, current: Round, now: float) -> State:
    """Repeats the round with the same attempt and updates. Clients that are alive replace those that stay away."""
    away = {s.client for s in current.missing if s.key in current.declined}
    absent = sorted(away | set(roster.absentees((s.client for s in current.missing), presence, config, now)))
    # A client that declined stays out after it was replaced: else two such clients would replace each other for ever.
    taken = {s.client for s in current.assignments} | {key.partition("/")[0] for key in current.declined}
    spare = [
        m for m in roster.retained(state) if m.name not in taken and roster.worker_alive(presence, m.name, config, now)
    ]
    planned = {s.client: s for s in current.assignments}
    swapped = {
        gone: replace(planned[gone], client=m.name, membership=m.membership, samples=m.samples)
        for gone, m in zip(absent, spare, strict=False)
    }
    late = current.deadline_at is not None and now >= current.deadline_at
    if not swapped and not late:
        return _ask_again(state, config, current, now)
    assignments = tuple(sorted((swapped.get(s.client, s) for s in current.assignments), key=lambda s: s.client))
    repeated = replace(
        current.with_assignments(assignments), deadline_at=_deadline(config, now), repeats=current.repeats + 1
    )
    if late:
        repeated = replace(repeated, declined={}, declined_at=None)
    missing = _names(repeated.missing)
    return replace(state, round=repeated).note("round.repeated", now, round=current.number, missing=missing)


def _ask_again(state: State, config: FederationConfig, current: Round, now: float) -> State:
    """Asks clients that declined again after a while, because no other client can replace them."""
    if current.declined_at is None or now < current.declined_at + config.plan.absent_seconds:
        return state
    again = replace(current, declined={}, declined_at=None, repeats=current.repeats + 1)
    missing = _names(again.missing)
    return replace(state, round=again).note("round.repeated", now, round=current.number, missing=missing)


def abandon(state: State, now: float, why: str) -> State:
    """Drops the open round. The model stays as it is, and the next attempt has its own number."""
    current = state.round
    if current is None:
        return state
    state = replace(state, round=None)
    return state.note("round.abandoned", now, round=current.number, attempt=current.attempt, why=why)


def decline(state: State, name: str, key: str, reason: str, now: float, *, for_good: bool = False) -> State:
    """Records that a client will not fill its assignment, so that the round does not wait for it.

    `for_good`: the client will never be able to. A ticket that needs it is then not tried again.
    """
    current = state.round
    if current is None or all(s.key != key or s.client != name for s in current.missing):
        return state
    declined = {**current.declined, key: reason[:500]}
    never = (*current.declined_for_good, key) if for_good else current.declined_for_good
    state = replace(state, round=replace(current, declined=declined, declined_at=now, declined_for_good=never))
    return state.note("round.declined", now, round=current.number, client=name, why=reason[:500])


def drop_client(state: State, name: str, now: float) -> State:
    """Takes a client's ordinary assignments and updates out of the open round.

    A sum that is being computed is outdated and will be computed again. In an unlearning round the frozen n stays: the
    client contributes zero.
    """
    current = state.round
    if current is None or not any(s.client == name and not s.ticket for s in current.assignments):
        return state
    assignments = tuple(s for s in current.assignments if s.client != name or s.ticket)
    keys = {s.key for s in assignments}
    received = {key: update for key, update in current.received.items() if key in keys}
    current = replace(
        current.with_assignments(assignments),
        received=received,
        phase=RoundPhase.COLLECTING,
        closed_at=None,
        revision=current.revision + 1,
    )
    return replace(state, round=current).note("round.slot_dropped", now, round=current.number, client=name)


def lose(state: State, key: str, now: float, why: str) -> State:
    """Removes a recorded update that is no longer on disk. Its assignment is open again, and the client is asked again."""
    current = state.round
    if current is None or key not in current.received:
        return state
    received = {k: update for k, update in current.received.items() if k != key}
    current = replace(
        current, received=received, phase=RoundPhase.COLLECTING, closed_at=None, revision=current.revision + 1
    )
    return replace(state, round=current).note("round.update_lost", now, round=current.number, key=key, why=why)


def samples_changed(state: State, name: str, now: float) -> State:
    """Adapts the open round to a client that joined again with another sample count.

    In an ordinary round n is what was received: the open assignment takes the larger count, else its update would be
    refused. The frozen n of an unlearning round is outdated: that round is abandoned.
    """
    current = state.round
    if current is None:
        return state
    samples = state.members[name].samples
    if current.denominator is None:
        assignments = tuple(
            replace(s, samples=samples)
            if s.client == name and s.key not in current.received and samples > s.samples
            else s
            for s in current.assignments
        )
        return (
            replace(state, round=current.with_assignments(assignments)) if assignments != current.assignments else state
        )
    unfilled = [s for s in current.missing if s.client == name and s.part is not Part.FORGET]
    if all(s.samples - s.taken == samples for s in unfilled):
        return state
    return abandon(state, now, f"{name} came back with {samples} samples")


def close(state: State, now: float) -> State:
    """Closes the round: from now on its updates are summed, and no update is accepted."""
    current = state.round
    if current is None:
        raise AssertionError("no round to close")
    state = replace(state, round=replace(current, phase=RoundPhase.FOLDING, closed_at=now))
    return state.note("round.closed", now, round=current.number, received=len(current.received))


def _deadline(config: FederationConfig, now: float) -> float | None:
    return now + config.plan.deadline_seconds if config.plan.deadline_seconds else None


def _names(assignments: Sequence[Assignment]) -> list[str]:
    return sorted({s.client for s in assignments})
