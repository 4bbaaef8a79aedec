"""Unlearning jobs: from waiting tickets to an unlearned model.

A job has the model evaluated, then runs the steps of its method, one round each, for all its tickets. A round with targets
commits with the update of every target or not at all. The last step applies the tickets, and recovery follows. Tickets
that arrive during recovery are served at the next round boundary and join the recovery.
"""

from __future__ import annotations

from dataclasses import replace

from puf_server.core import methods, roster, rounds, server_optimizer, tickets
from puf_server.core.config import FederationConfig
from puf_server.core.methods.base import Method, View
from puf_server.core.state.jobs import Recovery, UnlearningJob
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import Round, RoundKind, RoundPhase, Step
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Applied, Mode, Outcome, Ticket, TicketState, UnlearnedSamples
from puf_server.core.unlearning import adaptive, escalation, evaluation, history, model_versions

_LONGEST_PAUSE = 3600.0
_NO_CLIENT = "all other clients have asked to be forgotten meanwhile"


def ready(state: State, presence: Presence, config: FederationConfig, now: float) -> list[Ticket]:
    """Tickets that could be served now, oldest first."""
    pending = [t for t in state.tickets.values() if t.state is TicketState.PENDING]
    waiting = [t for t in pending if t.not_before is None or now >= t.not_before]
    if not waiting:
        return []
    if roster.no_client_remains(state) and any(t.on_hold and t.waiting for t in state.tickets.values()):
        # No client would remain, and the operator has not approved that yet.
        return []

    def able(ticket: Ticket) -> bool:
        view = View(state=state, presence=presence, config=config, now=now, about=(ticket.id,))
        return methods.serving(config.forgetting, ticket).ready(ticket, view)

    free = [t for t in waiting if not t.on_hold]
    found = [t for t in free if _nothing_to_forget(state, t) or roster.no_client_remains(state) or able(t)]
    special = [t for t in found if _discloses(config, t) and not _nothing_to_forget(state, t)]
    if len(special) < config.forgetting.special_min_targets and not roster.no_client_remains(state):
        found = [t for t in found if t not in special]
    return sorted(found, key=lambda t: (t.request.filed_at, t.id))


def _discloses(config: FederationConfig, ticket: Ticket) -> bool:
    """Whether PUF-Special serves it. The models before and after then disclose a lone target's update."""
    return methods.serving(config.forgetting, ticket).name == "puf" and ticket.request.mode is Mode.SPECIAL


def start(state: State, presence: Presence, config: FederationConfig, waiting: list[Ticket], now: float) -> State:
    """Starts a job for the oldest ready ticket and those that its method serves with it."""
    for ticket in waiting:
        if _nothing_to_forget(state, ticket):
            return _complete_empty(state, ticket, now)
    if roster.no_client_remains(state):
        return rounds.close(rounds.open_round(state, config, RoundKind.RESET, Step(base=0, last=True), now), now)
    view = View(state=state, presence=presence, config=config, now=now)
    for ticket in waiting:
        why = methods.serving(config.forgetting, ticket).unable(ticket, view)
        if why is not None:
            return adaptive.fix_strength(state, config, ticket.id, why, now)
    first = waiting[0]
    name = methods.name_serving(config.forgetting, first)
    method = methods.by_name(config.forgetting, name)
    # After a restore a client may have several open requests. A round has one assignment for each part of a client.
    oldest = {t.client: t for t in reversed(waiting)}
    alike = [t for t in waiting if methods.name_serving(config.forgetting, t) == name and oldest[t.client] is t]
    chosen = method.choose(alike, view)
    for ticket in chosen:
        note = f"to be served by {_label(method, ticket)}"
        state = tickets.move(state, ticket.id, TicketState.SCHEDULED, now, note)
    before = state.recovery.before if state.recovery else {}
    who = state.recovery.evaluators if state.recovery else roster.evaluators(state, presence, config, now)
    job = UnlearningJob(
        tickets=tuple(t.id for t in chosen),
        mode=first.request.mode,
        evaluators=who,
        before=before,
        measured=bool(state.recovery) or not who,
        method=name,
    )
    return replace(state, job=job)


def drive(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
    """Takes the next step of the job: the evaluation before, or the method's next round."""
    job = state.job
    if job is None:
        return state
    if not job.measured:
        return evaluation.open_evaluation(state, config, job.evaluators, now, training_side=True)
    method = _method(config, job)
    if method.requires.target_takes_part:
        lost = [t for t in job.tickets if not roster.worker_alive(presence, state.tickets[t].client, config, now)]
        if lost:
            return _release(state, config, lost, now, "the client went away")
    few = len(job.tickets) < config.forgetting.special_min_targets
    if few and _discloses(config, state.tickets[job.tickets[0]]):
        return _release(state, config, list(job.tickets), now, "too few targets are left for PUF-Special")
    view = View(state=state, presence=presence, config=config, now=now, job=job)
    if not method.possible(view):
        return _release(state, config, list(job.tickets), now, _NO_CLIENT)
    if method.evaluates(view):
        return evaluation.open_evaluation(state, config, job.evaluators, now, version=view.model)
    if job.step == 0:
        why = method.unable(state.tickets[job.tickets[0]], view)
        if why is not None:
            for ticket_id in job.tickets:
                state = adaptive.fix_strength(state, config, ticket_id, why, now)
            name = methods.name_serving(config.forgetting, state.tickets[job.tickets[0]])
            return replace(state, job=replace(job, method=name))
    step = method.step(view)
    if step is None:
        return state
    if job.step == 0:
        for ticket_id in job.tickets:
            ticket = state.tickets[ticket_id]
            state = state.with_ticket(replace(ticket, attempts=ticket.attempts + 1))
    return _open(state, config, job, step, now)


def _open(state: State, config: FederationConfig, job: UnlearningJob, step: Step, now: float) -> State:
    assert not (step.last and step.into), "the last step of a method makes the model"
    state = rounds.open_round(state, config, RoundKind.UNLEARN, step, now, method=job.method, targets=job.tickets)
    if not step.assignments:
        return rounds.close(state, now)
    if any(s.ticket for s in step.assignments):
        assert state.round is not None
        return replace(state, round=replace(state.round, deadline_at=now + config.forgetting.attempt_seconds))
    return state


def close_if_due(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
    """Closes a round of a job. A round with targets closes with all of them; a missing target goes back to PENDING."""
    current, job = state.round, state.job
    if current is None or job is None or current.phase is not RoundPhase.COLLECTING:
        return state
    method = _method(config, job)
    view = View(state=state, presence=presence, config=config, now=now, job=job)
    if not method.possible(view):
        return _release(rounds.abandon(state, now, _NO_CLIENT), config, list(job.tickets), now, _NO_CLIENT)
    if not any(s.ticket for s in current.assignments):
        return _close_without_targets(state, presence, config, current, now)
    waiting = tuple(rounds.hopeful(current, presence, config, now))
    lost = sorted({s.ticket for s in current.missing if s.ticket and s not in waiting})
    if lost:
        reasons = "; ".join(r for key, r in current.declined.items() if any(s.key == key for s in current.missing))
        state = rounds.abandon(state, now, "a target did not answer")
        why = reasons or "the client did not answer in its unlearning round"
        return _declined_for_good(_release(state, config, lost, now, why), config, current, now)
    # Retained clients have the plan's deadline: a silent one does not delay unlearning for `attempt_seconds`.
    seconds = config.plan.deadline_seconds
    if seconds and now >= current.opened_at + seconds:
        waiting = tuple(s for s in waiting if s.ticket)
    if waiting:
        return state
    have = sum(s.key in current.received for s in current.assignments if not s.ticket)
    if not method.enough_came(view, have):
        state = rounds.abandon(state, now, "too few retained clients answered")
        return _release(state, config, list(job.tickets), now, "too few retained clients answered")
    return rounds.close(replace(state, round=replace(current, step=method.settle(view, current))), now)


def _declined_for_good(state: State, config: FederationConfig, current: Round, now: float) -> State:
    """Ends tickets whose target can never do its work: the fallback serves them, or they fail with the reason.

    A request for samples fails: such a target could not train on the rest of its samples for the fallback either.
    """
    for assignment in current.missing:
        if not assignment.ticket or assignment.key not in current.declined_for_good:
            continue
        ticket = state.tickets[assignment.ticket]
        if ticket.state is TicketState.PENDING and not ticket.fallback:
            why = f"{ticket.client} cannot do its work for this request: {current.declined[assignment.key]}"
            if ticket.whole_client:
                state = tickets.without_method(state, config, ticket, "declined", why, now)
            else:
                state = tickets.move(state, ticket.id, TicketState.FAILED, now, why)
    return state


def _close_without_targets(
    state: State, presence: Presence, config: FederationConfig, current: Round, now: float
) -> State:
    """Closes a round without targets like an ordinary one. A round that cannot close is planned again."""
    if current.assignments and not current.missing:
        return rounds.close(state, now)
    if rounds.awaits(current, presence, config, now):
        return state
    if current.assignments and rounds.has_quorum(current, config):
        return rounds.close_without(state, now)
    if current.declined_at is not None and now < current.declined_at + config.plan.absent_seconds:
        return state
    return rounds.abandon(state, now, "too few clients answered")


def recorded(state: State, config: FederationConfig, current: Round, now: float) -> State:
    """Records what the targets reported in a round that commits now: their doses, and which samples they unlearned."""
    if state.job is None:
        return state
    view = View(state=state, presence=Presence(), config=config, now=now, job=state.job)
    state = adaptive.recorded(state, view, current, now)
    assert state.job is not None
    said = {
        a.ticket: UnlearnedSamples(samples=update.unlearned_samples, digest=update.unlearned_digest)
        for a in current.assignments
        if (update := current.received.get(a.key)) is not None and update.unlearned_samples
    }
    return replace(state, job=replace(state.job, unlearned={**state.job.unlearned, **said})) if said else state


def stepped(state: State, current: Round) -> State:
    """Records a committed step that is not the last. Deletes the version that it replaces."""
    job, made = state.job, state.newest
    assert job is not None
    old = job.aux.get(current.step.into) if current.step.into else job.working
    if old is not None:
        state = model_versions.delete(state, (old,))
    job = replace(job, step=job.step + 1, method_state={**job.method_state, **current.step.method_state})
    if current.step.into:
        return replace(state, job=replace(job, aux={**job.aux, current.step.into: made}))
    return replace(state, job=replace(job, working=made))


def applied(state: State, config: FederationConfig, current: Round, before: int, now: float) -> State:
    """Applies the tickets after the last step or a reset: targets leave the roster, old models are withdrawn."""
    if current.kind is RoundKind.RESET:
        ids = [t.id for t in state.tickets.values() if t.state is TicketState.PENDING]
        job = UnlearningJob(tickets=tuple(ids), mode=None, evaluators=(), measured=True)
    else:
        assert state.job is not None
        job = state.job
    method = _method(config, job)
    scales = {s.ticket: current.scale_of(s) for s in current.assignments if s.negated}
    since = state.number
    for ticket_id in job.tickets:
        ticket = state.tickets[ticket_id]
        member = state.members[ticket.client]
        if ticket.applied is None:
            since = min(since, member.first_round or since)
            if ticket.whole_client:
                state = state.with_member(roster.forgotten(member))
        else:
            # A second method follows. The target has left already, and may have joined again as another member.
            since = min(since, escalation.first_round(state, ticket.applied))
        label = "reset" if current.kind is RoundKind.RESET else _label(method, ticket)
        applied = Applied(
            round=current.number,
            at=now,
            method=label,
            scale=None if ticket_id in job.doses else scales.get(ticket_id),
            version_before=before,
            version_unlearned=state.version,
            score_before=evaluation.total(job.before),
            score_clients=len(job.before),
            doses=job.doses.get(ticket_id, ()),
            unlearned=job.unlearned.get(ticket_id),
        )
        if ticket.applied is not None:
            applied = escalation.applied_again(ticket.applied, applied)
        note = f"committed in round {current.number} by {label}"
        state = tickets.move(state, ticket_id, TicketState.APPLIED, now, note, applied=applied)
        state = history.forget(state, state.tickets[ticket_id], now)
    for ticket_id in job.tickets:
        state = _cover(state, state.tickets[ticket_id], now)
    state = model_versions.delete(state, model_versions.made_by(job))
    reset = current.kind is RoundKind.RESET
    known = {**job.method_state, **current.step.method_state}
    if reset or method.rewrites:
        state = history.rewritten(state, config, now, since=0 if reset else method.rebuilt_from(known))
    state = server_optimizer.without_carried(state, now, f"round {current.number} forgot data that they contain")
    state = model_versions.withdraw(state, since)
    at_least, at_most = (0, None) if reset else method.recovery_rounds(known)
    recovery = Recovery(
        evaluators=job.evaluators,
        before=job.before,
        started_at=now,
        reset=reset,
        at_least=at_least,
        at_most=at_most,
        lr=None if reset else method.rate(config),
        method="" if reset else job.method,
    )
    return replace(state, job=None, recovery=recovery)


def failed_target(state: State, config: FederationConfig, client: str, why: str, now: float) -> State:
    """Releases a target whose update gives no finite model. The other targets continue without it."""
    job = state.job
    assert job is not None
    lost = [t for t in job.tickets if state.tickets[t].client == client]
    return _release(rounds.abandon(state, now, why), config, lost, now, why)


def _complete_empty(state: State, ticket: Ticket, now: float) -> State:
    """Completes a ticket at once, because no model contains its client. No model changes."""
    member = state.members[ticket.client]
    if ticket.whole_client:
        state = state.with_member(roster.forgotten(member))
    why = "no update of this client was ever folded: nothing to forget"
    applied = Applied(round=state.number, at=now, method="none")
    state = tickets.move(state, ticket.id, TicketState.APPLIED, now, why, applied=applied)
    state = tickets.move(state, ticket.id, TicketState.COMPLETED, now, why, outcome=Outcome(completed_at=now))
    if ticket.reopened or ticket.for_reopened:
        state = model_versions.release(state)
    return _cover(state, ticket, now)


def _cover(state: State, done: Ticket, now: float) -> State:
    """Withdraws other tickets of a client that was forgotten as a whole: this ticket includes them."""
    if done.whole_client:
        for t in state.tickets.values():
            if (t.client, t.membership, t.state) == (done.client, done.membership, TicketState.PENDING):
                why = f"taken over by {done.id} for the whole client"
                state = tickets.move(state, t.id, TicketState.WITHDRAWN, now, why, taken_over=done.id)
    return state


def _release(state: State, config: FederationConfig, lost: list[str], now: float, why: str) -> State:
    """Sends tickets back to PENDING with a growing pause. The job continues with the rest, or ends."""
    job = state.job
    assert job is not None
    for ticket_id in lost:
        attempts = state.tickets[ticket_id].attempts
        pause = min(_LONGEST_PAUSE, config.plan.absent_seconds * 2.0 ** max(0, attempts - 1))
        state = tickets.move(state, ticket_id, TicketState.PENDING, now, why, not_before=now + pause)
    rest = tuple(t for t in job.tickets if t not in lost)
    if job.step:
        # The models made so far include the released targets.
        state = model_versions.delete(state, model_versions.made_by(job))
        job = replace(job, step=0, method_state={}, working=None, aux={}, doses={}, evaluated=None, unlearned={})
    return replace(state, job=replace(job, tickets=rest) if rest else None)


def _method(config: FederationConfig, job: UnlearningJob) -> Method:
    return methods.by_name(config.forgetting, job.method)


def _label(method: Method, ticket: Ticket) -> str:
    return f"{method.label(ticket)} (fallback: {ticket.fallback})" if ticket.fallback else method.label(ticket)


def _nothing_to_forget(state: State, ticket: Ticket) -> bool:
    return state.members[ticket.client].first_round == 0
