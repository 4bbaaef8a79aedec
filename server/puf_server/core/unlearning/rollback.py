"""Rollback: the operator takes an unlearning back. The model from before is installed again, tickets are open again.

Possible until a ticket completes: then the models that contain its client are deleted. The requests stay: their clients
are on the roster again, do not train, and are served when they come back.
"""

from __future__ import annotations

from dataclasses import replace

from puf_common.errors import NotNow
from puf_server.core import rounds, server_optimizer, tickets
from puf_server.core.config import FederationConfig
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import Round, RoundKind, Step
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.core.unlearning import model_versions


def release(state: State, now: float) -> State:
    """Operator approval for a collapsed model: it is served."""
    recovery = state.recovery
    if recovery is None or not recovery.on_hold:
        raise NotNow("no model is on hold: there is nothing to release")
    state = replace(state, recovery=replace(recovery, on_hold=None, released=True))
    return state.note("model.released", now, version=state.version)


def begin(state: State, config: FederationConfig, now: float) -> State:
    """Ends what is under way, and closes a round that installs the model from before the oldest open unlearning."""
    if state.round is not None and state.round.kind is RoundKind.ROLLBACK:
        return state
    before = [t.versions[0] for t in state.tickets.values() if t.recovering and t.versions]
    if state.recovery is None or state.recovery.reset or not before:
        raise NotNow("nothing can be rolled back: no unlearning waits for its completion")
    why = "the operator rolls back"
    job = state.job
    if job is not None:
        for ticket_id in job.tickets:
            state = tickets.move(state, ticket_id, TicketState.PENDING, now, why)
        state = model_versions.delete(state, model_versions.made_by(job))
    state = replace(rounds.abandon(state, now, why), job=None, evaluation=None)
    return rounds.close(
        rounds.open_round(state, config, RoundKind.ROLLBACK, Step(base=min(before), last=True), now), now
    )


def done(state: State, config: FederationConfig, current: Round, now: float) -> State:
    """Opens the tickets again after the old model was installed. Models made since are withdrawn."""
    state = reopened(state, config, f"rolled back by the operator to model {current.base}", now)
    state = model_versions.mark(state, ModelStatus.WITHDRAWN, lambda m: current.base < m.version < state.version)
    return server_optimizer.without_carried(state, now, "the model they belong to was rolled back")


def reopened(state: State, config: FederationConfig, why: str, now: float) -> State:
    """Ends recovery and makes its tickets pending again, because the model in use no longer has their unlearning."""
    for ticket in [t for t in state.tickets.values() if t.recovering]:
        member = state.members[ticket.client]
        if ticket.whole_client and member.membership == ticket.membership:
            state = state.with_member(replace(member, status=MemberStatus.ACTIVE))
        deadline = now + config.forgetting.deadline_days * 86400
        state = tickets.move(state, ticket.id, TicketState.PENDING, now, why, applied=None, deadline_at=deadline)
    return replace(state, recovery=None)
