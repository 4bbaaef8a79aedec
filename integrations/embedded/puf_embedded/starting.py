"""The state at the start of a run: what the model that the run begins with means for requests.

Another framework stores the models. A run that was killed can begin with an older one, for example with the last model that
the app saved. A receipt must not state an unlearning that this model does not have.
"""

from __future__ import annotations

from dataclasses import replace

from puf_common.errors import UsageError
from puf_server.core import scheduler
from puf_server.core.commits import ModelFile
from puf_server.core.config import FederationConfig
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.core.unlearning import rollback

_CLEAN = (ModelStatus.READY, ModelStatus.UNLEARNED)


def started(state: State, config: FederationConfig, file: ModelFile, now: float) -> State:
    """The state with this model in use. A round or job that was under way is given up; its requests wait.

    A request in recovery is pending again, unless the model is known to have its unlearning. Raises UsageError if the
    model contains a client whose request is completed.
    """
    if state.round is not None or state.job is not None:
        state = replace(scheduler.fold_failed(state, "the run ended before the round did", now), halted="")
    state = replace(state, evaluation=None)
    newest = state.models.get(state.version)
    if newest is not None and newest.digest == file.digest:
        return state
    same = [m for m in state.models.values() if m.digest == file.digest]
    if not any(m.status in _CLEAN for m in same):
        _refuse_forgotten(state, same)
        state = _reopened(state, config, now)
    version = state.newest + 1 if state.models else 0
    model = ModelVersion(
        version=version,
        round=state.number,
        digest=file.digest,
        nbytes=file.nbytes,
        status=ModelStatus.UNLEARNED if state.recovery else ModelStatus.READY,
        created_at=now,
    )
    state = replace(state, version=version).with_model(model)
    return state.note("model.installed", now, version=version, digest=file.digest)


def _reopened(state: State, config: FederationConfig, now: float) -> State:
    """The state in which requests in recovery are pending again. Their clients count as many samples as they unlearned."""
    applied = [(t, t.applied) for t in state.tickets.values() if t.recovering and t.applied is not None]
    state = rollback.reopened(state, config, "the run began with a model without this unlearning", now)
    for ticket, how in applied:
        if how.unlearned is None:
            raise UsageError(
                f"the run begins with a model without the unlearning of request {ticket.id}, and it is not known how many "
                f"samples {ticket.client} has. Begin with a model from after round {how.round}"
            )
        count = how.unlearned.samples
        member = state.members[ticket.client]
        adapts = bool(how.doses)
        member = replace(member, samples=count, most_samples=count, last_samples=count, adapts=adapts)
        state = state.with_member(member)
    return state


def _refuse_forgotten(state: State, same: list[ModelVersion]) -> None:
    """Raises UsageError if one of these models contains a client that a completed request has forgotten."""
    for ticket in state.tickets.values():
        if ticket.state is not TicketState.COMPLETED or ticket.applied is None:
            continue
        first, last = state.members[ticket.client].first_round, ticket.applied.version_before
        for model in same:
            if first and last is not None and model.round >= first and model.version <= last:
                raise UsageError(
                    f"the run begins with the model of round {model.round}, which contains {ticket.client}: request "
                    f"{ticket.id} has forgotten it in round {ticket.applied.round}. Begin with a model from after that "
                    "round, or with the initial model"
                )
