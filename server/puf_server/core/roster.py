"""The roster: joining, leaving, operator approval, and the choice of clients for a round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from random import Random

from puf_common.errors import Forgotten, Mismatch, NotFound, NotNow, Superseded, TooMuch, UnknownSession, WorkerAlive
from puf_common.seeds import derive
from puf_server.core.config import FederationConfig
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.presence import Presence
from puf_server.core.state.state import State
from puf_server.core.validation import SESSION_CHARS

# With fewer clients every share is large.
_COMPARABLE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """What a worker states when it joins. `token` is random and makes its session secret."""

    instance: str
    token: str
    samples: int
    holdout: int
    unlabeled: int = 0
    # Samples that the client adds on purpose, after a request for samples.
    added: int = 0
    device: str = ""
    adapts: bool = False
    rejoin: bool = False
    only_if_no_worker: bool = False


def join(
    state: State, presence: Presence, config: FederationConfig, name: str, request: JoinRequest, now: float
) -> State:
    """The state with this worker on the roster. The newest process wins; the same process keeps its session.

    A session is its generation and a random token. An older generation was superseded. A newer one is not known here,
    because the state was restored from a backup; its worker has to join again.
    """
    member = state.members.get(name)
    limits = config.limits
    announced = max(request.samples, request.holdout, request.unlabeled)
    if announced > limits.max_samples:
        raise TooMuch(
            f"{name} announces {announced} samples; this federation accepts at most {limits.max_samples} from one client",
            limit=limits.max_samples,
        )
    if member is None and len(state.members) >= limits.max_clients:
        raise TooMuch(f"this federation already has {limits.max_clients} clients, its limit", limit=limits.max_clients)
    if member is None or (member.status is MemberStatus.READMITTED and request.rejoin):
        member = Member(
            name=name,
            membership=member.membership + 1 if member else 1,
            status=MemberStatus.ACTIVE,
            samples=request.samples,
            holdout=request.holdout,
            generation=member.generation if member else 0,
            session="",
            instance="",
            device=request.device,
            joined_at=now,
        )
        state = state.note("client.joined", now, client=name, membership=member.membership, samples=request.samples)
    if member.status is MemberStatus.FORGOTTEN:
        raise Forgotten(f"{name} was forgotten by this federation; the operator can readmit it", client=name)
    if member.status is MemberStatus.READMITTED:
        raise Forgotten(f"{name} was forgotten and readmitted: it must ask to rejoin as a new member", client=name)
    if request.only_if_no_worker and member.instance != request.instance and worker_alive(presence, name, config, now):
        raise WorkerAlive(f"another process already works as {name}", client=name)
    most = max(member.most_samples, member.samples)
    # 0: the client has not announced a count yet, or not since a rollback.
    if most and request.samples > most + request.added:
        _require_no_forgotten(state, member, request, most)
    if member.samples != request.samples:
        state = state.note("client.samples_changed", now, client=name, before=member.samples, after=request.samples)
    if member.instance != request.instance:
        generation = member.generation + 1
        member = replace(
            member, generation=generation, session=f"{generation}.{request.token}", instance=request.instance
        )
    return state.with_member(
        replace(
            member,
            samples=request.samples,
            most_samples=max(most, request.samples),
            holdout=request.holdout,
            unlabeled=request.unlabeled,
            device=request.device,
            adapts=request.adapts,
        )
    )


def _require_no_forgotten(state: State, member: Member, request: JoinRequest, most: int) -> None:
    """Refuses a client with requests for samples that announces more than `most`: forgotten samples would come back."""
    mine = [t for t in state.tickets.values() if (t.client, t.membership) == (member.name, member.membership)]
    asked = sorted(t.id for t in mine if t.excludes_samples)
    if asked:
        raise Mismatch(
            f"{member.name} announces {request.samples} samples; after {', '.join(asked)} it has {most}. Leave the forgotten "
            f"samples out of training. If {request.samples - most} samples are new, join with added_samples "
            f"{request.samples - most} (puf-client run --added-samples {request.samples - most})",
            announced=request.samples,
            roster=most,
        )


def with_samples(member: Member, change: int) -> Member:
    """The member after a request took samples out of training, or brought them back."""
    most = max(member.most_samples, member.samples)
    return replace(member, samples=member.samples + change, most_samples=most + change)


def leave(state: State, name: str, session: str, now: float) -> State:
    """The state without this worker's session. The client stays a member, and rounds do not wait for it."""
    member = state.members.get(name)
    if member is None or not session or member.session != session:
        return state
    # A server that restarts waits for workers that hold a session.
    return state.with_member(replace(member, session="", instance="")).note("client.left", now, client=name)


def readmit(state: State, name: str, now: float) -> State:
    """Operator approval for a forgotten name: it may join again as a new member."""
    member = member_of(state, name)
    if member.status is MemberStatus.ACTIVE:
        raise NotNow(f"{name} was not forgotten; there is nothing to readmit", client=name)
    member = replace(member, status=MemberStatus.READMITTED)
    return state.with_member(member).note("client.readmitted", now, client=name)


def forgotten(member: Member) -> Member:
    """The member record of a forgotten client: its name, which must not join again unasked, and its rounds."""
    return replace(
        member,
        status=MemberStatus.FORGOTTEN,
        session="",
        instance="",
        device="",
        samples=0,
        most_samples=0,
        holdout=0,
        unlabeled=0,
        last_samples=0,
        adapts=False,
        counted=(),
    )


def past_grace(state: State, config: FederationConfig, now: float) -> list[str]:
    """Forgotten names that may no longer follow their tickets or fetch receipts. Their credentials can be deleted."""
    grace = config.forgetting.grace_days * 86400.0
    busy = {t.client for t in state.tickets.values() if t.within_grace(now, grace)}
    return sorted(name for name, m in state.members.items() if m.status is MemberStatus.FORGOTTEN and name not in busy)


def approve(state: State, name: str, now: float) -> State:
    """Operator approval for a client on hold: it may train, whatever it announces."""
    member = member_of(state, name)
    member = replace(member, approved=True, outweighs=False, on_hold=None)
    return state.with_member(member).note("client.allowed", now, client=name)


def hold(state: State, name: str, why: str, now: float) -> State:
    """The client gets no training work until the operator approves it."""
    member = member_of(state, name)
    return state.with_member(replace(member, on_hold=why)).note("client.held", now, client=name, why=why)


def weigh(state: State, config: FederationConfig, now: float) -> State:
    """Puts clients on hold that announce more than `max_share` of all samples. Applies from three clients on.

    Such a client would decide every round alone.
    """
    out = state.kept_out()
    able = [
        m
        for m in state.members.values()
        if m.status is MemberStatus.ACTIVE and m.samples > 0 and not m.on_hold and m.name not in out
    ]
    most = config.limits.max_share * sum(m.samples for m in able)
    heavy = {m.name for m in able if m.samples > most and not m.approved} if len(able) >= _COMPARABLE else set()
    for member in [m for m in state.members.values() if m.outweighs != (m.name in heavy)]:
        over = member.name in heavy
        state = state.with_member(replace(member, outweighs=over))
        if over:
            state = state.note("client.outweighs", now, client=member.name, samples=member.samples)
    return state


def member_of(state: State, name: str) -> Member:
    member = state.members.get(name)
    if member is None:
        raise NotFound(f"{name} never joined this federation: start its worker first", client=name)
    return member


def session_member(state: State, name: str, session: str) -> Member:
    """The member that a worker's session belongs to. Refuses sessions that are unknown, replaced or over."""
    member = state.members.get(name)
    if member is None:
        raise UnknownSession(f"{name} is not on the roster of this federation: join first", client=name)
    if member.status is not MemberStatus.ACTIVE:
        raise Forgotten(f"{name} was forgotten by this federation", client=name)
    if not session or member.session != session:
        generation = session[:SESSION_CHARS].partition(".")[0]
        if generation.isdecimal() and int(generation) < member.generation:
            raise Superseded(f"a newer process works as {name}; this one must stop", client=name)
        raise UnknownSession(f"this session of {name} is unknown: join again", client=name)
    return member


def worker_alive(presence: Presence, name: str, config: FederationConfig, now: float) -> bool:
    return presence.silent_seconds(name, now) <= config.plan.absent_seconds


def absentees(names: Iterable[str], presence: Presence, config: FederationConfig, now: float) -> list[str]:
    return [name for name in names if not worker_alive(presence, name, config, now)]


def retained(state: State) -> list[Member]:
    """Members that train and have no open request to be forgotten, by name."""
    out = state.kept_out()
    return [m for name, m in sorted(state.members.items()) if m.trains and name not in out]


def distillers(state: State, presence: Presence, config: FederationConfig, now: float) -> list[Member]:
    """Members that are alive and hold unlabeled data to distill on, by name."""
    out = state.kept_out()
    return [
        m
        for name, m in sorted(state.members.items())
        if m.status is MemberStatus.ACTIVE
        and m.unlabeled
        and name not in out
        and worker_alive(presence, name, config, now)
    ]


def no_client_remains(state: State) -> bool:
    """Whether every client that trains has asked to be forgotten as a whole."""
    out = {t.client for t in state.tickets.values() if t.keeps_out and t.whole_client}
    return not any(m.trains and name not in out for name, m in state.members.items())


def required(state: State, config: FederationConfig) -> int:
    """How many clients must be alive before a training round opens.

    `min_clients` does not fall when clients leave. `start_clients` counts those that have joined: clients that were
    forgotten, asked to be forgotten or are on hold count, although they do not train.
    """
    if state.number:
        return config.plan.min_clients
    gone = sum(m.status is not MemberStatus.ACTIVE or bool(m.on_hold) or m.outweighs for m in state.members.values())
    return max(config.plan.min_clients, config.plan.start_clients - gone - len(state.kept_out()))


def cohort(
    members: list[Member],
    state: State,
    presence: Presence,
    config: FederationConfig,
    now: float,
    *,
    at_least: int = 0,
    round_number: int | None = None,
) -> list[Member]:
    """The members that are alive, or the plan's share of them. The draw depends on seed and round number only."""
    alive = [m for m in members if worker_alive(presence, m.name, config, now)]
    size = max(ceil(config.plan.participation * len(alive)), min(at_least, len(alive)))
    if size == len(alive):
        return alive
    number = state.number + 1 if round_number is None else round_number
    drawn = Random(derive(config.recipe.seed, "cohort", number)).sample(alive, size)  # noqa: S311
    return sorted(drawn, key=lambda m: m.name)


def evaluators(state: State, presence: Presence, config: FederationConfig, now: float) -> tuple[str, ...]:
    """The clients that measure models: those without training samples if there are any, else retained clients."""
    out = state.kept_out()
    able = [
        m
        for name, m in sorted(state.members.items())
        if m.status is MemberStatus.ACTIVE and m.holdout > 0 and name not in out
    ]
    able = [m for m in able if worker_alive(presence, m.name, config, now)]
    chosen = [m for m in able if m.samples == 0] or able
    if len(chosen) > config.plan.max_evaluators:
        draw = Random(derive(config.recipe.seed, "evaluators", state.number))  # noqa: S311
        chosen = draw.sample(chosen, config.plan.max_evaluators)
    return tuple(sorted(m.name for m in chosen))
