"""Filing, withdrawing and moving requests to be forgotten along their life cycle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from puf_common.errors import InvalidArgument, NotFound, NotNow
from puf_server.core import forget_budget, methods, rounds, validation
from puf_server.core.config import FederationConfig, Forgetting
from puf_server.core.methods.base import Asked
from puf_server.core.roster import worker_alive
from puf_server.core.state.measurements import Evidence, Sums
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket, TicketEvent, TicketState
from puf_server.core.unlearning import model_versions

__all__ = ["Request", "approve", "expire", "file", "find", "measure", "move", "withdraw"]

_ARROWS: dict[TicketState, frozenset[TicketState]] = {
    TicketState.PENDING: frozenset(
        {TicketState.SCHEDULED, TicketState.APPLIED, TicketState.FAILED, TicketState.WITHDRAWN}
    ),
    TicketState.SCHEDULED: frozenset({TicketState.PENDING, TicketState.APPLIED}),
    # Back to PENDING only by the operator's rollback, which takes the round back as well.
    TicketState.APPLIED: frozenset({TicketState.RECOVERING, TicketState.COMPLETED, TicketState.PENDING}),
    TicketState.RECOVERING: frozenset({TicketState.COMPLETED, TicketState.PENDING}),
    TicketState.COMPLETED: frozenset(),
    TicketState.FAILED: frozenset({TicketState.WITHDRAWN}),
    TicketState.WITHDRAWN: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks for; None where it leaves the choice to the federation."""

    key: str
    scope: str = "client"
    mode: str | None = None
    flip: str | None = None
    kappa: float | None = None
    eta_u: float | None = None
    epochs: int | None = None
    forget_samples: int = 0
    retain_samples: int = 0
    reference: str = ""
    received_at: float | None = None
    # A failed ticket for the very same samples, asked for again by this one.
    replaces: str = ""
    # "client", or "operator" on behalf of one that is gone.
    by: str = "client"


def file(
    state: State,
    presence: Presence,
    config: FederationConfig,
    name: str,
    request: Request,
    *,
    ticket_id: str,
    now: float,
) -> tuple[State, Ticket, bool]:
    """Opens a ticket, or finds the one that stands already (second value True). Refuses what the policy does not allow."""
    member = state.members.get(name)
    if member is None or member.status is MemberStatus.READMITTED:
        raise NotFound(f"{name} is not in this federation: there is nothing to forget", client=name)
    mine = [t for t in state.tickets.values() if t.client == name and t.membership == member.membership]
    known = next((t for t in mine if t.request_key == request.key), None)
    if known is not None:
        return state, known, True
    whole = next((t for t in mine if t.scope == "client" and (t.open or t.state is TicketState.COMPLETED)), None)
    if whole is not None:
        return state, whole, True
    policy = config.forgetting
    _require_servable(state, config, name, request)
    if request.by == "client":
        forget_budget.require(mine, config.limits, now)
    again = _replaced(mine, request)
    if again is not None:
        # In one step with the new one: at no moment do the samples belong to nobody's request.
        if again.state is TicketState.FAILED:
            state = move(state, again.id, TicketState.WITHDRAWN, now, f"asked again as {ticket_id}")
        if request.forget_samples + request.retain_samples == member.samples + again.forget_samples:
            state = _add_samples(state, name, again.forget_samples)
            member = state.members[name]
    ticket = _checked(
        request, policy, member.samples, now, ticket_id=ticket_id, name=name, membership=member.membership
    )
    if request.by == "operator" and not worker_alive(presence, name, config, now):
        ticket = _fallen_back(ticket, state, config, "absent") or ticket
    for standing in mine:
        if not standing.waiting:
            continue
        if request.scope == "samples":
            raise NotNow(
                f"ticket {standing.id} of {name} is {standing.state}: wait until it is applied, or withdraw it first",
                ticket=standing.id,
            )
        if standing.state is TicketState.PENDING:
            # The announced count stays: the client's samples are out of training, and it does not know yet of this step.
            why = f"taken over by {ticket_id} for the whole client"
            state = move(state, standing.id, TicketState.WITHDRAWN, now, why, taken_over=ticket_id)
    for failed in mine:
        # Samples of another failed request are still to be forgotten: only a request for everything covers them.
        if failed.state is TicketState.FAILED and request.scope == "client":
            state = move(state, failed.id, TicketState.WITHDRAWN, now, f"asked again as {ticket_id}")
    ticket = forget_budget.weighed(state, config.limits, member, ticket, now)
    state = state.with_ticket(ticket)
    facts: dict[str, Any] = {"ticket": ticket.id, "client": name, "scope": ticket.scope, "mode": ticket.mode}
    facts |= {"kappa": ticket.kappa, "eta_u": ticket.eta_u, "reference": ticket.reference, "by": ticket.filed_by}
    state = state.note("ticket.filed", now, **facts, **({"held": ticket.on_hold} if ticket.on_hold else {}))
    if ticket.scope == "samples":
        state = _add_samples(state, name, -ticket.forget_samples)
    serving = methods.serving(policy, ticket)
    if serving.as_it_was and state.round is not None and state.round.kind in (RoundKind.TRAIN, RoundKind.RECOVER):
        state = rounds.abandon(state, now, f"{serving.name} forgets {name} in the model as it is")
    return rounds.drop_client(state, name, now), ticket, False


def withdraw(state: State, name: str, ticket_id: str, now: float) -> tuple[State, Ticket]:
    ticket = find(state, name, ticket_id)
    if ticket.state is TicketState.WITHDRAWN:
        return state, ticket
    if ticket.state not in (TicketState.PENDING, TicketState.FAILED):
        raise NotNow(
            f"ticket {ticket_id} is {ticket.state} and can no longer be withdrawn", ticket=ticket_id, state=ticket.state
        )
    state = move(state, ticket_id, TicketState.WITHDRAWN, now, "withdrawn by the client")
    if ticket.scope == "samples":
        state = _add_samples(state, name, ticket.forget_samples)
    if ticket.reopened:
        state = model_versions.release(state)
    return state, state.tickets[ticket_id]


def approve(state: State, ticket_id: str, now: float) -> State:
    """The operator's word that a request beyond the budget is served."""
    ticket = find(state, None, ticket_id)
    return state.with_ticket(replace(ticket, on_hold="")).note("ticket.allowed", now, ticket=ticket_id)


def measure(
    state: State, name: str, ticket_id: str, version: int, sums: Sums, now: float, evidence: Evidence | None = None
) -> tuple[State, Ticket]:
    """Books what the owner measured itself; the first answer for a version stands."""
    ticket = find(state, name, ticket_id)
    if version not in (ticket.version_before, ticket.version_unlearned, ticket.version_recovered):
        raise NotFound(f"model {version} is not one of ticket {ticket_id}", ticket=ticket_id)
    if version in ticket.measurements:
        return state, ticket
    ticket = replace(
        ticket,
        measurements={**ticket.measurements, version: sums},
        evidence={**ticket.evidence, version: evidence} if evidence else ticket.evidence,
    )
    state = state.with_ticket(ticket)
    return state.note("ticket.measured", now, ticket=ticket_id, version=version, by="client"), ticket


def find(state: State, name: str | None, ticket_id: str) -> Ticket:
    """The ticket, if it is the caller's (None asks as the operator). Others' tickets do not exist for a client."""
    ticket = state.tickets.get(ticket_id)
    if ticket is None or (name is not None and ticket.client != name):
        raise NotFound(f"no ticket {ticket_id}", ticket=ticket_id)
    return ticket


def move(state: State, ticket_id: str, to: TicketState, now: float, note: str, **facts: Any) -> State:
    """One step along the drawn arrows; any other step is a bug and raises."""
    ticket = state.tickets[ticket_id]
    if to not in _ARROWS[ticket.state]:
        raise AssertionError(f"ticket {ticket_id} cannot go from {ticket.state} to {to}")
    ticket = replace(ticket, state=to, history=(*ticket.history, TicketEvent(state=to, at=now, note=note)), **facts)
    return state.with_ticket(ticket).note(f"ticket.{to}", now, ticket=ticket_id, client=ticket.client, why=note)


def expire(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
    """Fails what is past its deadline while its client is away, or leaves it to the fallback, which needs no client.

    One that is there, or was filed just now, is still served, and so is one whose method can do without it. A reset that
    is under way needs nobody, and serves them all.
    """
    if state.round is not None and state.round.kind is RoundKind.RESET:
        return state
    for ticket in state.tickets.values():
        if ticket.state is not TicketState.PENDING:
            continue
        hopeless = methods.serving(config.forgetting, ticket).hopeless(ticket, state, config)
        if hopeless is not None:
            state = _without_method(state, config, ticket, "too late", hopeless, now)
            continue
        if now < ticket.deadline_at:
            continue
        if not methods.serving(config.forgetting, ticket).requires.target_takes_part:
            continue
        if now >= ticket.filed_at + config.plan.absent_seconds and not worker_alive(
            presence, ticket.client, config, now
        ):
            why = "deadline passed: the client never came back for its unlearning round"
            state = _without_method(state, config, ticket, "absent", why, now)
    return state


def _without_method(state: State, config: FederationConfig, ticket: Ticket, word: str, why: str, now: float) -> State:
    """The federation's method cannot serve this ticket: the fallback does, or the ticket fails."""
    fallen_back = _fallen_back(ticket, state, config, word)
    if fallen_back is None:
        return move(state, ticket.id, TicketState.FAILED, now, why)
    facts = {"ticket": ticket.id, "client": ticket.client, "method": config.forgetting.fallback}
    return state.with_ticket(fallen_back).note("ticket.fell_back", now, **facts, why=why)


def _require_servable(state: State, config: FederationConfig, name: str, request: Request) -> None:
    """Asks the method when a request is filed: what it cannot serve is refused now and not after weeks."""
    asked = Asked(
        client=name,
        scope=request.scope,
        mode=request.mode,
        kappa=request.kappa,
        eta_u=request.eta_u,
        epochs=request.epochs,
        flip=request.flip,
        by=request.by,
    )
    why = methods.method_of(config.forgetting).refuse(asked, state, config)
    if why is not None:
        raise NotNow(why, method=config.forgetting.method)


def _fallen_back(ticket: Ticket, state: State, config: FederationConfig, why: str) -> Ticket | None:
    """The ticket as one that the fallback serves; None where there is none, or where it is not needed or cannot."""
    fallback = methods.fallback_of(config.forgetting)
    needed = methods.serving(config.forgetting, ticket).requires.target_takes_part
    if fallback is None or not needed:
        return None
    asked = Asked(client=ticket.client, scope=ticket.scope, by=ticket.filed_by)
    if fallback.refuse(asked, state, config) is not None:
        return None
    # A pause was for the target to come back.
    return replace(ticket, fallback=why, not_before=0.0)


def _checked(
    request: Request, policy: Forgetting, samples: int, now: float, *, ticket_id: str, name: str, membership: int
) -> Ticket:
    mode = request.mode or policy.mode
    flip = request.flip or policy.flip
    epochs = request.epochs or policy.epochs
    # Strength is PUF's: other methods have refused a request that names one.
    open_strength = request.kappa is None and request.eta_u is None
    kappa = policy.kappa if open_strength and policy.method == "puf" else request.kappa
    if request.scope not in ("client", "samples"):
        raise InvalidArgument(f"scope must be client or samples, not {request.scope!r}")
    if mode not in ("regular", "special"):
        raise InvalidArgument(f"mode must be regular or special, not {mode!r}")
    if flip not in ("client", "server"):
        raise InvalidArgument(f"flip must be client or server, not {flip!r}")
    if mode == "special" and not policy.special_allowed:
        raise InvalidArgument("this federation does not accept PUF-Special: ask for mode regular")
    if kappa is not None and not policy.min_kappa <= kappa <= policy.max_kappa:
        raise InvalidArgument(f"kappa must lie between {policy.min_kappa:g} and {policy.max_kappa:g}, not {kappa:g}")
    if request.eta_u is not None and not 0 < request.eta_u <= policy.max_eta_u:
        raise InvalidArgument(f"eta_u must be above 0 and at most {policy.max_eta_u:g}, not {request.eta_u:g}")
    if mode == "special" and request.eta_u is not None and request.eta_u > policy.max_total_kappa:
        raise InvalidArgument(
            f"in PUF-Special eta_u is the strength itself: at most {policy.max_total_kappa:g}, not {request.eta_u:g}"
        )
    if not 1 <= epochs <= policy.max_epochs:
        raise InvalidArgument(f"unlearning epochs must lie between 1 and {policy.max_epochs}, not {epochs}")
    if request.scope == "samples":
        if request.forget_samples < 1:
            raise InvalidArgument("sample scope needs at least one sample to forget")
        if request.retain_samples < 1:
            raise InvalidArgument("no sample would remain: ask for the whole client to be forgotten")
        if request.forget_samples + request.retain_samples != samples:
            raise InvalidArgument(
                f"{request.forget_samples} to forget and {request.retain_samples} to retain do not add up to the "
                f"{samples} samples this client announced"
            )
    received_at = now if request.received_at is None else validation.day(request.received_at, now)
    deadline_at = received_at + policy.deadline_days * 86400
    return Ticket(
        id=ticket_id,
        client=name,
        membership=membership,
        request_key=validation.key(request.key),
        scope=request.scope,
        mode=mode,
        flip=flip,
        kappa=kappa,
        eta_u=request.eta_u,
        epochs=epochs,
        forget_samples=request.forget_samples if request.scope == "samples" else 0,
        retain_samples=request.retain_samples if request.scope == "samples" else 0,
        reference=request.reference[:200],
        filed_at=now,
        received_at=received_at,
        deadline_at=deadline_at,
        history=(
            TicketEvent(
                state=TicketState.PENDING,
                at=now,
                note="filed" if request.by == "client" else f"filed by the {request.by} on behalf of {name}",
            ),
        ),
        filed_by=request.by,
    )


def _replaced(mine: list[Ticket], request: Request) -> Ticket | None:
    """The request that this one names and asks for again; its samples are counted once."""
    if not request.replaces or request.scope != "samples":
        return None
    named = next((t for t in mine if t.id == request.replaces), None)
    over = (TicketState.FAILED, TicketState.WITHDRAWN)
    if named is None or named.scope != "samples" or named.state not in over:
        raise NotNow(f"ticket {request.replaces} is no request for samples that could be asked for again")
    if named.forget_samples != request.forget_samples:
        raise InvalidArgument(
            f"ticket {named.id} was about {named.forget_samples} samples, not {request.forget_samples}: it cannot be "
            "replaced by this request"
        )
    return named


def _add_samples(state: State, name: str, change: int) -> State:
    member = state.members[name]
    return state.with_member(replace(member, samples=member.samples + change))
