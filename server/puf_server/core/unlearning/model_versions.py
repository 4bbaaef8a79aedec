"""Which model versions exist, who may see them, and which are deleted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from puf_common.errors import Forgotten, NotFound, NotNow
from puf_server.core import methods
from puf_server.core.config import FederationConfig
from puf_server.core.state.jobs import UnlearningJob
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState

__all__ = [
    "collect",
    "delete",
    "delete_withdrawn",
    "inherited",
    "made_by",
    "may_fetch",
    "newest_ready",
    "readable",
    "ready",
    "release",
    "withdraw",
]

_DAY = 86400.0


def readable(state: State, version: int) -> ModelVersion:
    model = state.models.get(version)
    if model is None:
        raise NotFound(f"there is no model {version}; the newest is {state.version}", version=version)
    if model.status is ModelStatus.DELETED:
        raise NotFound(f"model {version} was deleted", version=version)
    return model


def newest_ready(state: State) -> ModelVersion:
    """What is exported unless a version is named. During recovery that is nothing: what was ready before is withdrawn."""
    newest = max((m for m in state.models.values() if m.status is ModelStatus.READY), key=lambda m: m.version)
    if newest.version == 0 < state.version:
        raise NotNow(
            f"no trained model is ready: model {state.version} is {state.models[state.version].status}; wait until recovery "
            "is over, or name a version (0 is the initial model)",
            version=state.version,
        )
    return newest


def may_fetch(state: State, config: FederationConfig, member: Member, version: int, now: float) -> ModelVersion:
    """A member may fetch the newest model and what it works on; a forgotten one only its own tickets' models, for a time."""
    tickets = [t for t in state.tickets.values() if t.client == member.name]
    grace = config.forgetting.grace_days * _DAY
    mine = {v for t in tickets if t.within_grace(now, grace) for v in t.versions}
    if member.status is MemberStatus.ACTIVE:
        mine |= {state.version}
        mine |= {state.round.base} if state.round else set()
        assignments = state.round.assignments if state.round else ()
        mine |= {s.aux for s in assignments if s.client == member.name and s.aux is not None}
        mine |= {state.evaluation.version} if state.evaluation else set()
    if version not in mine:
        if member.status is MemberStatus.ACTIVE:
            raise NotFound(f"model {version} is not served; the newest is {state.version}", version=version)
        raise Forgotten(f"{member.name} was forgotten; model {version} is not one of its tickets'", client=member.name)
    return readable(state, version)


def withdraw(state: State, since_round: int) -> State:
    """Versions that knew somebody who is being forgotten; w_0 knew nobody."""
    models = {
        v: replace(m, status=ModelStatus.WITHDRAWN)
        if m.round >= since_round and v < state.version and m.status is not ModelStatus.DELETED
        else m
        for v, m in state.models.items()
    }
    return replace(state, models=models)


def inherited(state: State, base: int) -> State:
    """The newest model, made from `base`: one made from a withdrawn model knows whom that one knew.

    Only while a reopened request waits: the round that serves it makes a model that may be used again.
    """
    if not _unserved(state) or state.models[base].status is not ModelStatus.WITHDRAWN:
        return state
    return state.with_model(replace(state.models[state.version], status=ModelStatus.WITHDRAWN))


def ready(state: State) -> State:
    """Recovery is over: the newest model is the one to use, unless it knows somebody whose reopened request waits."""
    current = state.models[state.version]
    if current.status is ModelStatus.WITHDRAWN and _unserved(state):
        return state
    return state.with_model(replace(current, status=ModelStatus.READY))


def release(state: State) -> State:
    """The owner of the last reopened request took it back: what was withdrawn for it alone may be used again."""
    if _unserved(state):
        return state
    others = any(t.recovering for t in state.tickets.values())
    models = {
        v: replace(m, status=ModelStatus.UNLEARNED if others else ModelStatus.READY)
        if m.status is ModelStatus.WITHDRAWN and (v == state.version or not others)
        else m
        for v, m in state.models.items()
    }
    return replace(state, models=models)


def _unserved(state: State) -> bool:
    """Whether somebody who was forgotten once, and is known again since a restore, still waits to be forgotten again."""
    return any(t.reopened and (t.waiting or t.state is TicketState.FAILED) for t in state.tickets.values())


def delete_withdrawn(state: State) -> tuple[State, tuple[int, ...]]:
    """What knew somebody who is forgotten, and an unlearned model that has the very same weights (Natural's).

    Never the newest one, whatever its status: there would be nothing to go on from.
    """
    withdrawn = {m.digest for m in state.models.values() if m.status is ModelStatus.WITHDRAWN}
    gone = tuple(
        v
        for v, m in sorted(state.models.items())
        if m.digest in withdrawn and m.status in (ModelStatus.WITHDRAWN, ModelStatus.UNLEARNED) and v != state.version
    )
    return delete(state, gone), gone


def collect(state: State, config: FederationConfig, now: float) -> State:
    """Deletes old versions beyond the plan's number, never one that a round, a ticket or its owner may need."""
    keep = config.plan.keep_models
    if not keep or any(memory.checkpoints for memory in methods.stored_history(config.forgetting)):
        return state
    present = sorted((v for v, m in state.models.items() if m.status is not ModelStatus.DELETED), reverse=True)
    needed = {0, state.version, *present[:keep], *_needed(state, config, now)}
    return delete(state, (v for v in present if v not in needed))


def _needed(state: State, config: FederationConfig, now: float) -> set[int]:
    grace = config.forgetting.grace_days * _DAY
    needed = {state.round.base} if state.round else set()
    if state.evaluation:
        needed.add(state.evaluation.version)
    if state.round:
        needed |= set(state.round.step.combine.others.values())
    if state.job:
        needed |= set(made_by(state.job))
    for t in state.tickets.values():
        if t.within_grace(now, grace):
            needed |= set(t.versions)
    return needed


def made_by(job: UnlearningJob) -> tuple[int, ...]:
    """Versions that an job has made on its way and still needs."""
    return (*job.aux.values(), *(() if job.working is None else (job.working,)))


def delete(state: State, versions: Iterable[int]) -> State:
    models = dict(state.models)
    for v in versions:
        models[v] = replace(models[v], status=ModelStatus.DELETED)
    return replace(state, models=models) if models != state.models else state
