"""Recovery: rounds without the forgotten clients until the stop rule applies, then completion of the tickets."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from puf_server.core import roster, rounds, tickets
from puf_server.core.config import FederationConfig
from puf_server.core.state.jobs import Recovery
from puf_server.core.state.measurements import Sums
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Outcome, Ticket, TicketState
from puf_server.core.unlearning import evaluation, model_versions


def drive(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
    """Takes the next step of recovery: an evaluation, another round, or completion."""
    recovery = state.recovery
    if recovery is None:
        return state
    if recovery.before and recovery.evaluated != state.version:
        return evaluation.open_evaluation(state, config, recovery.evaluators, now, training_side=True)
    over, recovered = _verdict(state, config, recovery, now)
    if over and not _measured(state, config, now):
        return state
    if over:
        collapsed = "" if recovered or recovery.released else _collapsed(config, recovery, state.version)
        if not collapsed:
            return _complete(state, config, recovered, now)
        if recovery.on_hold:
            return state
        return replace(state, recovery=replace(recovery, on_hold=collapsed)).note("model.held", now, why=collapsed)
    members = roster.retained(state)
    alive = roster.cohort(members, state, presence, config, now)
    if not alive or len(alive) < ceil(config.plan.participation * config.plan.quorum * len(members)):
        return state
    for ticket in state.tickets.values():
        if ticket.state is TicketState.APPLIED:
            state = tickets.move(state, ticket.id, TicketState.RECOVERING, now, "recovery rounds have begun")
    return rounds.open_round(state, config, RoundKind.RECOVER, rounds.ordinary_step(state, config, alive), now)


def _verdict(state: State, config: FederationConfig, recovery: Recovery, now: float) -> tuple[bool, bool | None]:
    """Whether recovery is over, and whether the model has recovered; None if that could not be measured."""
    policy = config.forgetting
    if recovery.reset:
        return True, None
    timed_out = now >= recovery.started_at + policy.recovery_days * 86400
    if recovery.rounds < recovery.at_least and not timed_out and roster.retained(state):
        return False, None
    before, latest = _scores(recovery)
    if before and latest and latest.score >= policy.recovery_ratio * before.score:
        return True, True
    known = bool(recovery.before)
    most = policy.max_recovery_rounds if known else policy.blind_recovery_rounds
    if recovery.at_most is not None:
        most = recovery.at_most
    if recovery.rounds >= most or timed_out or not roster.retained(state):
        return True, False if known or timed_out else None
    return False, None


def _scores(recovery: Recovery) -> tuple[Sums | None, Sums | None]:
    """The scores before unlearning and now, of the clients that measured both."""
    both = recovery.before.keys() & recovery.latest.keys()
    before, latest = (evaluation.total({n: s[n] for n in both}) for s in (recovery.before, recovery.latest))
    return before, latest


def _collapsed(config: FederationConfig, recovery: Recovery, version: int) -> str:
    """Why the model needs operator approval before it is served; empty if it does not."""
    before, latest = _scores(recovery)
    ratio = config.forgetting.collapse_ratio
    if before is None or latest is None or latest.score >= ratio * before.score:
        return ""
    return (
        f"model {version} scores {latest.score:.1%} after recovery, {before.score:.1%} before unlearning: less than "
        f"collapse_ratio ({ratio:g}) of it"
    )


def _measured(state: State, config: FederationConfig, now: float) -> bool:
    """Whether every target has measured the models that completion deletes, or has had the time."""
    for t in state.tickets.values():
        if not t.recovering or t.applied is None:
            continue
        early = now < t.applied.at + config.forgetting.measure_seconds
        if early and not set(t.versions) <= t.applied.measurements.keys():
            return False
    return True


def still_measured(state: State, ticket: Ticket) -> bool:
    """Whether retained clients have still to measure the model right after unlearning."""
    recovery = state.recovery
    applied = ticket.applied
    if recovery is None or applied is None or not ticket.recovering or applied.version_unlearned != state.version:
        return False
    return bool(recovery.before) and recovery.evaluated != state.version


def _complete(state: State, config: FederationConfig, recovered: bool | None, now: float) -> State:
    recovery = state.recovery
    assert recovery is not None
    state, gone = model_versions.delete_withdrawn(state)
    state = model_versions.ready(state)
    outcomes = {
        True: "recovered",
        False: "not recovered within the allowed rounds",
        None: "recovery could not be measured",
    }
    for ticket in [t for t in state.tickets.values() if t.recovering]:
        state = tickets.move(
            state,
            ticket.id,
            TicketState.COMPLETED,
            now,
            "the model went back to its initial weights" if recovery.reset else outcomes[recovered],
            outcome=Outcome(
                completed_at=now,
                recovered=recovered,
                version_recovered=state.version,
                score_recovered=evaluation.total(recovery.latest),
                deleted_versions=gone,
            ),
        )
    return model_versions.collect(replace(state, recovery=None), config, now)
