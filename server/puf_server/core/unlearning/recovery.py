"""Recovery: rounds without the forgotten clients until the stop rule applies, then completion of the tickets."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from puf_server.core import methods, roster, rounds, tickets
from puf_server.core.config import FederationConfig
from puf_server.core.methods.base import View
from puf_server.core.state.jobs import Recovery
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Outcome, RecoveryEnd, Ticket, TicketState
from puf_server.core.unlearning import escalation, evaluation, model_versions, stop_rule, watch


def drive(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
    """Takes the next step of recovery: an evaluation, another round, escalation, or completion."""
    recovery = state.recovery
    if recovery is None:
        return state
    if recovery.before and recovery.evaluated != state.version:
        return evaluation.open_evaluation(state, config, recovery.evaluators, now, training_side=True)
    if recovery.rounds and not recovery.reset:
        state = watch.offered(state, config, now)
        if not watch.answered(state, config, now):
            return state
    ended = _end(state, config, recovery, now)
    if ended is None:
        return _next_round(state, presence, config, recovery, now)
    if not _measured(state, config, now):
        return state
    if escalation.due(state, config):
        return escalation.begin(state, config, now)
    collapsed = "" if ended is RecoveryEnd.EQUAL or recovery.released else _collapsed(config, recovery, state.version)
    if not collapsed:
        return _complete(state, config, ended, now)
    if recovery.on_hold:
        return state
    return replace(state, recovery=replace(recovery, on_hold=collapsed)).note("model.held", now, why=collapsed)


def _next_round(state: State, presence: Presence, config: FederationConfig, recovery: Recovery, now: float) -> State:
    """Opens a round of the retained clients, if enough are alive."""
    members = roster.retained(state)
    alive = roster.cohort(members, state, presence, config, now)
    if not alive or len(alive) < ceil(config.plan.participation * config.plan.quorum * len(members)):
        return state
    for ticket in state.tickets.values():
        if ticket.state is TicketState.APPLIED:
            state = tickets.move(state, ticket.id, TicketState.RECOVERING, now, "recovery rounds have begun")
    step = replace(rounds.ordinary_step(state, config, alive), lr=recovery.lr)
    if not recovery.method:
        return rounds.open_round(state, config, RoundKind.RECOVER, step, now)
    view = View(state=state, presence=presence, config=config, now=now)
    step = methods.by_name(config.forgetting, recovery.method).recovery_step(view, step)
    return rounds.open_round(state, config, RoundKind.RECOVER, step, now, method=recovery.method)


def _end(state: State, config: FederationConfig, recovery: Recovery, now: float) -> RecoveryEnd | None:
    """Why recovery is over; None if it is not."""
    policy = config.forgetting
    if recovery.reset:
        return RecoveryEnd.RESET
    timed_out = now >= recovery.started_at + policy.recovery_days * 86400
    alone = not roster.retained(state)
    if recovery.rounds < recovery.at_least and not timed_out and not alone:
        return None
    found = stop_rule.ended(recovery, policy.recovery_ratio)
    if found is not None and watch.level(state, config, recovery):
        return found
    known = bool(recovery.before)
    most = policy.max_recovery_rounds if known else policy.blind_recovery_rounds
    if recovery.at_most is not None:
        most = recovery.at_most
    if timed_out:
        return RecoveryEnd.TIME
    if alone:
        return RecoveryEnd.NO_CLIENT
    if recovery.rounds >= most:
        return RecoveryEnd.LIMIT if known else RecoveryEnd.NOT_MEASURED
    return None


def _collapsed(config: FederationConfig, recovery: Recovery, version: int) -> str:
    """Why the model needs operator approval before it is served; empty if it does not."""
    change = stop_rule.change(recovery.before, recovery.latest)
    ratio = config.forgetting.collapse_ratio
    if change is None or change.after >= ratio * change.before:
        return ""
    return (
        f"model {version} scores {change.after:.1%} after recovery, {change.before:.1%} before unlearning: less than "
        f"collapse_ratio ({ratio:g}) of it"
    )


def _measured(state: State, config: FederationConfig, now: float) -> bool:
    """Whether every target has measured the models that completion deletes, or has had the time."""
    for t in state.tickets.values():
        applied = t.applied
        if not t.recovering or applied is None:
            continue
        # A clock that was set back is before the round. The target then gets no time, instead of too much.
        early = applied.at <= now < applied.at + config.forgetting.measure_seconds
        deleted = {applied.version_before, applied.version_unlearned} - {None}
        if early and not deleted <= applied.measurements.keys():
            return False
    return True


def still_measured(state: State, ticket: Ticket) -> bool:
    """Whether retained clients have still to measure the model right after unlearning."""
    recovery = state.recovery
    applied = ticket.applied
    if recovery is None or applied is None or not ticket.recovering or applied.version_unlearned != state.version:
        return False
    return bool(recovery.before) and recovery.evaluated != state.version


def _complete(state: State, config: FederationConfig, ended: RecoveryEnd, now: float) -> State:
    recovery = state.recovery
    assert recovery is not None
    state, gone = model_versions.delete_withdrawn(state)
    state = model_versions.ready(state)
    for ticket in [t for t in state.tickets.values() if t.recovering]:
        member = state.members[ticket.client]
        if member.membership == ticket.membership and member.counted:
            # The digests of updates that contain the samples.
            state = state.with_member(replace(member, counted=()))
        state = tickets.move(
            state,
            ticket.id,
            TicketState.COMPLETED,
            now,
            stop_rule.sentence(ended, recovery),
            outcome=Outcome(
                completed_at=now,
                recovered=_RECOVERED.get(ended),
                version_recovered=state.version,
                score_recovered=evaluation.total(recovery.latest),
                deleted_versions=gone,
                ended=ended,
            ),
        )
    return model_versions.collect(replace(state, recovery=None), config, now)


# Where no client could measure it, whether the model recovered is not known.
_RECOVERED = {
    RecoveryEnd.EQUAL: True,
    RecoveryEnd.PLATEAU: True,
    RecoveryEnd.LIMIT: False,
    RecoveryEnd.TIME: False,
    RecoveryEnd.NO_CLIENT: False,
}
