"""Model versions: which exist, which a client may fetch, and which are deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from puf_common.errors import Forgotten, NotFound, NotNow
from puf_server.core import methods
from puf_server.core.config import FederationConfig
from puf_server.core.state.jobs import UnlearningJob
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.state import State

_DAY = 86400.0
# Differences lead to a model from so many versions before it.
_BASES = 4


def readable(state: State, version: int) -> ModelVersion:
    model = state.models.get(version)
    if model is None:
        raise NotFound(f"there is no model {version}; the newest is {state.version}", version=version)
    if model.status is ModelStatus.DELETED:
        raise NotFound(f"model {version} was deleted", version=version)
    return model


def newest_ready(state: State) -> ModelVersion:
    """The version to export if none is named. During recovery there is none: earlier versions are withdrawn."""
    newest = max((m for m in state.models.values() if m.status is ModelStatus.READY), key=lambda m: m.version)
    if newest.version == 0 < state.version:
        raise NotNow(
            f"no trained model is ready: model {state.version} is {state.models[state.version].status}; wait until recovery "
            "is over, or name a version (0 is the initial model)",
            version=state.version,
        )
    return newest


def may_fetch(state: State, config: FederationConfig, member: Member, version: int, now: float) -> ModelVersion:
    """The model, if this client may fetch it.

    A member may fetch the newest model and those of its assignments. A forgotten client may fetch the models of its
    tickets, until the grace period ends.
    """
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


def differences(state: State) -> frozenset[tuple[int, int]]:
    """The pairs of versions (older, newer) whose difference may be stored.

    They lead to the models that clients fetch now. A withdrawn or deleted model is in none: a difference contains what the
    two models contain.
    """
    usable = (ModelStatus.READY, ModelStatus.UNLEARNED)
    present = sorted(v for v, m in state.models.items() if m.status in usable)
    served = {state.version} | ({state.round.base} if state.round else set())
    served |= {state.evaluation.version} if state.evaluation else set()
    return frozenset((a, b) for b in served & set(present) for a in [v for v in present if v < b][-_BASES:])


def withdraw(state: State, since_round: int) -> State:
    """Withdraws versions that contain a client that is being forgotten. w_0 contains none."""
    return mark(state, ModelStatus.WITHDRAWN, lambda m: m.round >= since_round and m.version < state.version)


def mark(state: State, status: ModelStatus, chosen: Callable[[ModelVersion], bool]) -> State:
    """Gives a status to the chosen versions. Deleted versions stay deleted."""
    models = {
        v: replace(m, status=status) if m.status is not ModelStatus.DELETED and chosen(m) else m
        for v, m in state.models.items()
    }
    return replace(state, models=models)


def inherited(state: State, base: ModelVersion) -> State:
    """Withdraws the newest model if its base was withdrawn while a reopened request waits.

    It contains the clients that its base contains. The round that serves the request makes a usable model. The newest
    model need not be the current one: a job may make several before one of them becomes current.
    """
    if not _unserved(state) or base.status is not ModelStatus.WITHDRAWN:
        return state
    return state.with_model(replace(state.models[state.newest], status=ModelStatus.WITHDRAWN))


def ready(state: State) -> State:
    """Makes the newest model ready after recovery, unless it contains a client whose reopened request waits."""
    current = state.models[state.version]
    if current.status is ModelStatus.WITHDRAWN and _unserved(state):
        return state
    return state.with_model(replace(current, status=ModelStatus.READY))


def release(state: State) -> State:
    """Makes models usable that were withdrawn only for a reopened request, after the last such request was withdrawn."""
    if _unserved(state):
        return state
    others = any(t.recovering for t in state.tickets.values())
    return mark(
        state,
        ModelStatus.UNLEARNED if others else ModelStatus.READY,
        lambda m: m.status is ModelStatus.WITHDRAWN and (m.version == state.version or not others),
    )


def _unserved(state: State) -> bool:
    """Whether a reopened request waits: a restored backup contains its client, which was forgotten before."""
    return any(t.unserved for t in state.tickets.values())


def delete_withdrawn(state: State) -> tuple[State, tuple[int, ...]]:
    """Deletes withdrawn versions, and unlearned ones with the same weights (Natural makes such). Never the newest one.

    The second value names the deleted versions.
    """
    withdrawn = {m.digest for m in state.models.values() if m.status is ModelStatus.WITHDRAWN}
    gone = tuple(
        v
        for v, m in sorted(state.models.items())
        if m.digest in withdrawn and m.status in (ModelStatus.WITHDRAWN, ModelStatus.UNLEARNED) and v != state.version
    )
    return delete(state, gone), gone


def collect(state: State, config: FederationConfig, now: float) -> State:
    """Deletes versions beyond the plan's number, except those that a round, a ticket or its client needs."""
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
    """Versions that a job has made and still needs."""
    return (*job.aux.values(), *(() if job.working is None else (job.working,)))


def delete(state: State, versions: Iterable[int]) -> State:
    models = dict(state.models)
    for v in versions:
        score = models[v].score
        models[v] = replace(
            models[v], status=ModelStatus.DELETED, score=replace(score, classes=None) if score else None
        )
    return replace(state, models=models) if models != state.models else state
