"""What happens next.

`advance` runs after every change and at intervals. It moves the federation as far as it can go without clients and
without sums; clients do the assignments, and the engine has closed rounds folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from puf_server.core import roster, rounds, tickets
from puf_server.core.commits import ModelFile, commit
from puf_server.core.config import FederationConfig
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import HistoryRecord, RoundKind, RoundPhase
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.core.unlearning import evaluation, history, jobs, model_versions, recovery, rollback


def advance(
    state: State, presence: Presence, config: FederationConfig, now: float, since: State | None = None
) -> State:
    """The state after every step that can be taken now. `since` is the last advanced state: unchanged parts are skipped."""
    if since is None or state.members is not since.members or state.tickets is not since.tickets:
        state = roster.weigh(state, config, now)
    while True:
        after = _once(state, presence, config, now)
        if after is state:
            return state
        state = after


def _once(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
    state = tickets.expire(state, presence, config, now)
    after = _next(state, presence, config, now)
    return state if _without_space(state, after, presence) else after


def lacks_space(state: State, presence: Presence, config: FederationConfig, now: float) -> str:
    """Why the next round is not opened if the disk has no space for it; otherwise empty."""
    return _without_space(state, _next(state, presence, config, now), presence)


def _without_space(state: State, after: State, presence: Presence) -> str:
    """Why this step must not be taken: it opens a round that the disk has no space for. Otherwise empty."""
    opened, disk = after.round, presence.disk
    if opened is None or state.round is not None or disk is None:
        return ""
    needed = disk.needed(len(opened.assignments))
    if needed <= disk.free:
        return ""
    return (
        f"round {opened.number} is not opened: it needs {_megabytes(needed)} on the server's disk, and "
        f"{_megabytes(disk.free)} are free; make room"
    )


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


def _next(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
    if state.round is not None and state.round.kind is RoundKind.RESET and not roster.no_client_remains(state):
        return rounds.abandon(state, now, "a client that trains has joined")
    if state.paused or state.stopping or state.halted:
        return state
    if state.round is not None:
        if state.round.kind is RoundKind.UNLEARN:
            return jobs.close_if_due(state, presence, config, now)
        if jobs.ready(state, presence, config, now) and rounds.stalled(state, presence, config, now):
            return rounds.abandon(state, now, "it cannot close, and a request to be forgotten waits")
        return rounds.close_if_due(state, presence, config, now)
    if state.evaluation is not None:
        return evaluation.close_if_due(state, presence, config, now)
    if state.job is not None:
        return jobs.drive(state, presence, config, now)
    waiting = jobs.ready(state, presence, config, now)
    if waiting:
        return jobs.start(state, presence, config, waiting, now)
    if state.recovery is not None:
        return recovery.drive(state, presence, config, now)
    if _measurement_due(state, config):
        who = roster.evaluators(state, presence, config, now)
        if who:
            return evaluation.open_evaluation(state, config, who, now)
    if state.trained < state.planned:
        members = roster.retained(state)
        alive = [m for m in members if roster.worker_alive(presence, m.name, config, now)]
        if len(alive) >= roster.required(state, config):
            step = rounds.ordinary_step(state, config, roster.cohort(members, state, presence, config, now))
            return rounds.open_round(state, config, RoundKind.TRAIN, step, now)
    return state


def committed(
    state: State,
    config: FederationConfig,
    file: ModelFile,
    now: float,
    *,
    nbytes_down: int = 0,
    stored: tuple[HistoryRecord, ...] = (),
    factors: Mapping[str, float] | None = None,
) -> State:
    """Commits the folded model. Model, round, roster, tickets and history change together."""
    current = state.round
    if current is None:
        raise AssertionError("no round to commit")
    # A job deletes the bases of its models.
    before, base = state.version, state.models[current.base]
    if factors is not None:
        state = state.note("round.combined", now, round=current.number, factors=dict(factors))
    state = jobs.recorded(state, config, current, now)
    recovering = current.kind in (RoundKind.UNLEARN, RoundKind.RESET) or (
        state.recovery is not None and current.kind is not RoundKind.ROLLBACK
    )
    status = ModelStatus.UNLEARNED if recovering else ModelStatus.READY
    if current.step.into:
        status = ModelStatus.AUXILIARY
    state = history.keep(commit(state, file, status, now, nbytes_down), stored)
    if current.kind is RoundKind.UNLEARN and not current.step.last:
        state = jobs.stepped(state, current)
    elif current.kind in (RoundKind.UNLEARN, RoundKind.RESET):
        state = jobs.applied(state, config, current, before, now)
    elif current.kind is RoundKind.ROLLBACK:
        state = rollback.done(state, config, current, now)
    elif current.kind is RoundKind.RECOVER and state.recovery is not None:
        state = replace(state, recovery=replace(state.recovery, rounds=state.recovery.rounds + 1))
        for ticket in state.tickets.values():
            if ticket.recovering and ticket.applied:
                counted = replace(ticket.applied, recovery_rounds=ticket.applied.recovery_rounds + 1)
                state = state.with_ticket(replace(ticket, applied=counted))
    return model_versions.collect(model_versions.inherited(state, base), config, now)


def fold_failed(state: State, why: str, now: float) -> State:
    """The sum is not finite. Nothing is committed, and the federation halts for the operator."""
    state = rounds.abandon(state, now, why)
    job = state.job
    if job is not None:
        state = model_versions.delete(state, model_versions.made_by(job))
        for ticket_id in job.tickets:
            state = tickets.move(state, ticket_id, TicketState.PENDING, now, why)
    return replace(state, job=None, halted=why).note("federation.halted", now, why=why)


def unfit(state: State, config: FederationConfig, culprit: str, why: str, now: float) -> State:
    """One client's update made the sum not finite. A target tries again later; another client is put on hold."""
    current = state.round
    if current is None:
        raise AssertionError("no round to fail")
    if any(s.ticket and s.client == culprit for s in current.assignments):
        return jobs.failed_target(state, config, culprit, why, now)
    return rounds.drop_client(roster.hold(state, culprit, why, now), culprit, now)


def restarted(state: State, config: FederationConfig, now: float) -> State:
    """The state after a restart: deadlines leave workers the time to come back."""
    grace = now + config.plan.absent_seconds
    current, measuring = state.round, state.evaluation
    if current is not None and current.deadline_at is not None:
        current = replace(current, deadline_at=max(current.deadline_at, grace))
    if measuring is not None and measuring.deadline_at is not None:
        measuring = replace(measuring, deadline_at=max(measuring.deadline_at, grace))
    return replace(state, round=current, evaluation=measuring, stopping=False)


def phase(state: State) -> str:
    if state.stopping:
        return "stopping"
    if state.paused or state.halted:
        return "paused"
    if state.job is not None or (state.round is not None and state.round.kind in (RoundKind.UNLEARN, RoundKind.RESET)):
        return "unlearning"
    if state.recovery is not None:
        return "recovering"
    if state.round is not None:
        return "training"
    if state.trained >= state.planned:
        return "idle"
    return "training" if state.evaluation is not None else "waiting"


def waiting_for(state: State, presence: Presence, config: FederationConfig, now: float) -> str:
    """One sentence on what the federation waits for, with everything that waits for operator approval."""
    held = _on_hold(state)
    return f"{_waiting_for(state, presence, config, now)}{'; ' if held else ''}{held}"


def _on_hold(state: State) -> str:
    clients = sorted(m.name for m in state.members.values() if m.on_hold or m.outweighs)
    asked = sorted(t.id for t in state.tickets.values() if t.on_hold and t.waiting)
    said = [f"clients on hold: {_few(clients)}"] if clients else []
    said += [f"tickets on hold: {_few(asked)}"] if asked else []
    return "; ".join(said)


def _waiting_for(state: State, presence: Presence, config: FederationConfig, now: float) -> str:
    if state.halted:
        return f"halted: {state.halted}"
    if state.paused:
        return "paused by the operator"
    current = state.round
    if current is not None:
        if current.phase is RoundPhase.FOLDING:
            return f"summing the updates of round {current.number}"
        names = sorted({s.client for s in current.missing})
        return f"round {current.number} ({current.kind}): waiting for {_few(names)}"
    if state.evaluation is not None:
        return f"measuring model {state.evaluation.version}: waiting for {_few(sorted(state.evaluation.missing))}"
    lacking = lacks_space(state, presence, config, now)
    if lacking:
        return lacking
    if state.recovery is not None and state.recovery.on_hold:
        return f"model on hold: {state.recovery.on_hold}"
    if state.job is not None:
        return f"unlearning by {state.job.method}, step {state.job.step + 1}: waiting for more clients"
    if state.recovery is not None:
        return "recovery: waiting for clients, or for measurements of the target"
    pending = [t for t in state.tickets.values() if t.waiting]
    if pending and state.trained >= state.planned:
        return f"waiting for {_few(sorted(t.client for t in pending))} to come for unlearning"
    if state.trained >= state.planned:
        return "nothing to do: serving the model and accepting requests"
    alive = sum(roster.worker_alive(presence, m.name, config, now) for m in roster.retained(state))
    missing = roster.required(state, config) - alive
    return f"waiting for {missing} more client{'s' * (missing != 1)} to join"


def _measurement_due(state: State, config: FederationConfig) -> bool:
    every = config.plan.evaluate_every
    if not every or state.version == 0 or state.models[state.version].score is not None:
        return False
    return state.trained % every == 0 or state.trained >= state.planned


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
