"""From tickets that wait to a model that has recovered.

An episode measures the model before and runs one unlearning round for all its tickets; it commits with every target's
contribution or not at all. Recovery then runs ordinary rounds without the forgotten clients until the stop rule holds.
Tickets that arrive during recovery are served at the next round boundary and join it: nobody waits for somebody else's
recovery.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from puf_server.core import roster, rounds, surveys, tickets, versions
from puf_server.core.config import FederationConfig
from puf_server.core.methods import puf
from puf_server.core.state import (
    Episode,
    Kind,
    Member,
    MemberStatus,
    ModelStatus,
    Recovery,
    Round,
    RoundPhase,
    State,
    Ticket,
    TicketState,
)

__all__ = [
    "applied",
    "close_if_due",
    "drive",
    "drive_recovery",
    "failed_target",
    "nobody_left",
    "ready",
    "start",
    "still_measured",
]

_LONGEST_PAUSE = 3600.0


def ready(state: State, config: FederationConfig, now: float) -> list[Ticket]:
    """Tickets that could be served now, oldest first: the target is alive and, in Regular, enough others are."""
    alive = [m for m in roster.retained(state) if roster.worker_alive(state, m.name, config, now)]
    enough = len(alive) >= min(config.forgetting.min_retained, len(roster.retained(state)))
    waiting = [t for t in state.tickets.values() if t.state is TicketState.PENDING and now >= t.not_before]
    if nobody_left(state) and any(t.held and t.waiting for t in state.tickets.values()):
        # Nobody would remain, and the operator has not said so yet.
        return []
    waiting = [t for t in waiting if not t.held]
    able = sorted(
        (
            t
            for t in waiting
            if _nothing_to_forget(state, t)
            or nobody_left(state)
            or (roster.worker_alive(state, t.client, config, now) and (enough or t.mode == "special"))
        ),
        key=lambda t: (t.filed_at, t.id),
    )
    special = [t for t in able if t.mode == "special" and not _nothing_to_forget(state, t)]
    if len(special) < config.forgetting.special_min_targets and not nobody_left(state):
        able = [t for t in able if t not in special]
    return able


def start(state: State, config: FederationConfig, waiting: list[Ticket], now: float) -> State:
    """Begins an episode for the oldest ready ticket and all that share its mode, up to the cap on the sum of kappa."""
    for ticket in waiting:
        if _nothing_to_forget(state, ticket):
            return _complete_empty(state, ticket, now)
    if nobody_left(state):
        return rounds.fold(rounds.open_round(state, config, Kind.RESET, (), now, base=0), now)
    mode = waiting[0].mode
    chosen: list[Ticket] = []
    total = 0.0
    for ticket in (t for t in waiting if t.mode == mode):
        strength = _strength(state, config, ticket, now)
        if chosen and total + strength > config.forgetting.max_total_kappa:
            break
        chosen.append(ticket)
        total += strength
    for ticket in chosen:
        state = tickets.move(state, ticket.id, TicketState.SCHEDULED, now, f"to be served by puf-{mode}")
    before = state.recovery.before if state.recovery else {}
    who = state.recovery.evaluators if state.recovery else roster.evaluators(state, config, now)
    episode = Episode(
        tickets=tuple(t.id for t in chosen),
        mode=mode,
        evaluators=who,
        before=before,
        measured=bool(state.recovery) or not who,
    )
    return replace(state, episode=episode)


def drive(state: State, config: FederationConfig, now: float) -> State:
    """The next step of the episode: the measurement before, or the unlearning round."""
    episode = state.episode
    if episode is None:
        return state
    if not episode.measured:
        return surveys.open_survey(state, config, episode.evaluators, now, training_side=True)
    lost = [t for t in episode.tickets if not roster.worker_alive(state, state.tickets[t].client, config, now)]
    if lost:
        return _release(state, config, lost, now, "the client went away")
    if episode.mode == "special" and len(episode.tickets) < config.forgetting.special_min_targets:
        return _release(state, config, list(episode.tickets), now, "too few targets are left for PUF-Special")
    targets = [puf.Target(state.tickets[t], state.members[state.tickets[t].client]) for t in episode.tickets]
    others = _others(state, config, now) if episode.mode == "regular" else []
    plan = puf.plan(
        targets,
        others,
        mode=episode.mode,
        retained_rate=config.forgetting.retained_rate,
        epochs=float(config.recipe.epochs),
    )
    for target in targets:
        state = state.with_ticket(replace(target.ticket, attempts=target.ticket.attempts + 1))
    state = rounds.open_round(state, config, Kind.UNLEARN, plan.slots, now, denominator=plan.denominator)
    assert state.round is not None
    return replace(state, round=replace(state.round, deadline_at=now + config.forgetting.attempt_seconds))


def close_if_due(state: State, config: FederationConfig, now: float) -> State:
    """Closes the unlearning round with all targets, or sends those that failed it back to PENDING and tries again."""
    current, episode = state.round, state.episode
    if current is None or episode is None or current.phase is not RoundPhase.COLLECTING:
        return state
    if episode.mode == "regular" and nobody_left(state):
        why = "everybody else has asked to be forgotten meanwhile"
        return _release(rounds.abandon(state, now, why), config, list(episode.tickets), now, why)
    waiting = rounds.hopeful(current, state, config, now)
    lost = sorted({s.ticket for s in current.missing if s.ticket and s not in waiting})
    if lost:
        reasons = "; ".join(r for key, r in current.declined.items() if any(s.key == key for s in current.missing))
        state = rounds.abandon(state, now, "a target did not answer")
        return _release(state, config, lost, now, reasons or "the client did not answer in its unlearning round")
    if waiting:
        return state
    retained = [s for s in current.slots if not s.ticket]
    have = sum(s.key in current.received for s in retained)
    if episode.mode == "regular" and have < min(config.forgetting.min_retained, len(roster.retained(state))):
        state = rounds.abandon(state, now, "too few retained clients answered")
        return _release(state, config, list(episode.tickets), now, "too few retained clients answered")
    return rounds.fold(state, now)


def applied(state: State, config: FederationConfig, current: Round, now: float) -> State:
    """The unlearning round (or the reset) is committed: targets are off the roster, old models are withdrawn."""
    if current.kind is Kind.RESET:
        ids = [t.id for t in state.tickets.values() if t.state is TicketState.PENDING]
        episode = Episode(tickets=tuple(ids), mode="reset", evaluators=(), measured=True)
    else:
        assert state.episode is not None
        episode = state.episode
    scales = {s.ticket: s.scale for s in current.slots if s.negated}
    before = current.base if current.kind is Kind.UNLEARN else state.version - 1
    method = "reset" if current.kind is Kind.RESET else f"puf-{episode.mode}"
    since = state.number
    for ticket_id in episode.tickets:
        ticket = state.tickets[ticket_id]
        member = state.members[ticket.client]
        since = min(since, member.first_round or since)
        if ticket.scope == "client":
            state = state.with_member(replace(member, status=MemberStatus.FORGOTTEN, session="", instance=""))
            state = replace(state, seen={n: at for n, at in state.seen.items() if n != member.name})
        state = tickets.move(
            state,
            ticket_id,
            TicketState.APPLIED,
            now,
            f"committed in round {current.number} by {method}",
            method=method,
            applied_round=current.number,
            applied_at=now,
            scale=scales.get(ticket_id, 0.0),
            version_before=before,
            version_unlearned=state.version,
            score_before=surveys.total(episode.before),
            score_clients=len(episode.before),
        )
    for ticket_id in episode.tickets:
        state = _cover(state, state.tickets[ticket_id], now)
    state = versions.withdraw(state, since)
    recovery = Recovery(
        evaluators=episode.evaluators, before=episode.before, started_at=now, reset=current.kind is Kind.RESET
    )
    return replace(state, episode=None, recovery=recovery)


def drive_recovery(state: State, config: FederationConfig, now: float) -> State:
    """The next step of recovery: a measurement, another round, or the end."""
    recovery = state.recovery
    if recovery is None:
        return state
    if recovery.before and recovery.surveyed != state.version:
        return surveys.open_survey(state, config, recovery.evaluators, now, training_side=True)
    over, recovered = _verdict(state, config, recovery, now)
    if over and not _measured(state, config, now):
        return state
    if over:
        collapsed = "" if recovered or recovery.released else _collapsed(config, recovery, state.version)
        if not collapsed:
            return _complete(state, config, recovered, now)
        if recovery.held:
            return state
        return replace(state, recovery=replace(recovery, held=collapsed)).note("model.held", now, why=collapsed)
    members = roster.retained(state)
    alive = roster.cohort(members, state, config, now)
    if not alive or len(alive) < ceil(config.plan.participation * config.plan.quorum * len(members)):
        return state
    for ticket in state.tickets.values():
        if ticket.state is TicketState.APPLIED:
            state = tickets.move(state, ticket.id, TicketState.RECOVERING, now, "recovery rounds have begun")
    return rounds.open_round(state, config, Kind.RECOVER, rounds.ordinary_slots(alive, config), now)


def _verdict(state: State, config: FederationConfig, recovery: Recovery, now: float) -> tuple[bool, bool | None]:
    """Whether recovery is over, and whether the model has recovered (None: nobody could tell)."""
    policy = config.forgetting
    if recovery.reset:
        return True, None
    common = recovery.before.keys() & recovery.latest.keys()
    if common:
        before, latest = (surveys.total({n: s[n] for n in common}) for s in (recovery.before, recovery.latest))
        assert before is not None
        assert latest is not None
        if latest.score >= policy.recovery_ratio * before.score:
            return True, True
    known = bool(recovery.before)
    most = policy.max_recovery_rounds if known else policy.blind_recovery_rounds
    timed_out = now >= recovery.started_at + policy.recovery_days * 86400
    if recovery.rounds >= most or timed_out or not roster.retained(state):
        return True, False if known or timed_out else None
    return False, None


def _collapsed(config: FederationConfig, recovery: Recovery, version: int) -> str:
    """Why the model must not be served without the operator's word; empty where it may."""
    common = recovery.before.keys() & recovery.latest.keys()
    before, latest = (surveys.total({n: s[n] for n in common}) for s in (recovery.before, recovery.latest))
    ratio = config.forgetting.collapse_ratio
    if before is None or latest is None or latest.score >= ratio * before.score:
        return ""
    return (
        f"model {version} scores {latest.score:.1%} after recovery, {before.score:.1%} before unlearning: less than "
        f"collapse_ratio ({ratio:g}) of it"
    )


def failed_target(state: State, config: FederationConfig, client: str, why: str, now: float) -> State:
    """This target's update fits no model: its tickets wait for another attempt, the others go on without it."""
    episode = state.episode
    assert episode is not None
    lost = [t for t in episode.tickets if state.tickets[t].client == client]
    return _release(rounds.abandon(state, now, why), config, lost, now, why)


def _measured(state: State, config: FederationConfig, now: float) -> bool:
    """Whether every owner has measured the models that completion deletes, or has had the time."""
    for t in state.tickets.values():
        if t.recovering and now < t.applied_at + config.forgetting.measure_seconds:
            wanted = {t.version_before, t.version_unlearned}
            if not wanted <= t.measurements.keys():
                return False
    return True


def still_measured(state: State, ticket: Ticket) -> bool:
    """Whether the retained clients' measurement of the model right after unlearning is still to come."""
    recovery = state.recovery
    if recovery is None or not ticket.recovering or ticket.version_unlearned != state.version:
        return False
    return bool(recovery.before) and recovery.surveyed != state.version


def _complete(state: State, config: FederationConfig, recovered: bool | None, now: float) -> State:
    recovery = state.recovery
    assert recovery is not None
    state, gone = versions.delete_withdrawn(state)
    current = state.models[state.version]
    state = state.with_model(replace(current, status=ModelStatus.READY))
    word = {True: "recovered", False: "not recovered within the allowed rounds", None: "recovery could not be measured"}
    for ticket in [t for t in state.tickets.values() if t.recovering]:
        state = tickets.move(
            state,
            ticket.id,
            TicketState.COMPLETED,
            now,
            "the model went back to its initial weights" if recovery.reset else word[recovered],
            completed_at=now,
            recovered=recovered,
            version_recovered=state.version,
            score_recovered=surveys.total(recovery.latest),
            deleted_versions=gone,
        )
    return versions.collect(replace(state, recovery=None), config, now)


def _complete_empty(state: State, ticket: Ticket, now: float) -> State:
    """Nothing of this client ever entered a model: it leaves at once and no model changes."""
    member = state.members[ticket.client]
    if ticket.scope == "client":
        state = state.with_member(replace(member, status=MemberStatus.FORGOTTEN, session="", instance=""))
        state = replace(state, seen={n: at for n, at in state.seen.items() if n != member.name})
    why = "no update of this client was ever folded: nothing to forget"
    state = tickets.move(
        state, ticket.id, TicketState.APPLIED, now, why, method="none", applied_at=now, applied_round=state.number
    )
    state = tickets.move(state, ticket.id, TicketState.COMPLETED, now, why, completed_at=now)
    return _cover(state, ticket, now)


def _cover(state: State, done: Ticket, now: float) -> State:
    """A client that is wholly forgotten cannot come back for its other requests: this one has served them too."""
    if done.scope == "client":
        for t in state.tickets.values():
            if (t.client, t.membership, t.state) == (done.client, done.membership, TicketState.PENDING):
                state = tickets.move(
                    state, t.id, TicketState.WITHDRAWN, now, f"taken over by {done.id} for the whole client"
                )
    return state


def _release(state: State, config: FederationConfig, lost: list[str], now: float, why: str) -> State:
    """Sends tickets back to PENDING, with a growing pause; the episode goes on with the rest or ends without a commit."""
    episode = state.episode
    assert episode is not None
    for ticket_id in lost:
        attempts = state.tickets[ticket_id].attempts
        pause = min(_LONGEST_PAUSE, config.plan.absent_seconds * 2.0 ** max(0, attempts - 1))
        state = tickets.move(state, ticket_id, TicketState.PENDING, now, why, not_before=now + pause)
    rest = tuple(t for t in episode.tickets if t not in lost)
    return replace(state, episode=replace(episode, tickets=rest) if rest else None)


def _others(state: State, config: FederationConfig, now: float) -> list[Member]:
    """Retained clients of a Regular round: the plan's share, and as many as the round needs to close."""
    return roster.cohort(roster.retained(state), state, config, now, at_least=config.forgetting.min_retained)


def _strength(state: State, config: FederationConfig, ticket: Ticket, now: float) -> float:
    target = puf.Target(ticket, state.members[ticket.client])
    others = _others(state, config, now) if ticket.mode == "regular" else []
    return puf.effective_kappa(target, sum(m.samples for m in others) + target.forget_samples)


def _nothing_to_forget(state: State, ticket: Ticket) -> bool:
    return state.members[ticket.client].first_round == 0


def nobody_left(state: State) -> bool:
    """Everybody who trains has asked for everything to be forgotten."""
    out = {t.client for t in state.tickets.values() if t.keeps_out and t.scope == "client"}
    return not any(m.trains and name not in out for name, m in state.members.items())
