"""The life cycle of tickets: filing, approval, withdrawal, measurement, expiry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from puf_common.errors import InvalidArgument, NotFound, NotNow
from puf_server.core import forget_budget, methods, rounds, validation
from puf_server.core.config import FederationConfig, Forgetting
from puf_server.core.roster import with_samples, worker_alive
from puf_server.core.state.measurements import Measurement
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import (
    FiledBy,
    Flip,
    Mode,
    Request,
    RequestForm,
    Scope,
    Strength,
    Ticket,
    TicketEvent,
    TicketState,
)
from puf_server.core.unlearning import model_versions

_DAY = 86400.0
_MOVES: dict[TicketState, frozenset[TicketState]] = {
    TicketState.PENDING: frozenset(
        {TicketState.SCHEDULED, TicketState.APPLIED, TicketState.FAILED, TicketState.WITHDRAWN}
    ),
    TicketState.SCHEDULED: frozenset({TicketState.PENDING, TicketState.APPLIED}),
    # Only a rollback leads back to PENDING. It takes the round back as well.
    # Escalation leads back to SCHEDULED.
    TicketState.APPLIED: frozenset(
        {TicketState.RECOVERING, TicketState.COMPLETED, TicketState.PENDING, TicketState.SCHEDULED}
    ),
    TicketState.RECOVERING: frozenset({TicketState.COMPLETED, TicketState.PENDING, TicketState.SCHEDULED}),
    TicketState.COMPLETED: frozenset(),
    # A receipt of its completion, shown to a restored state, opens it again.
    TicketState.FAILED: frozenset({TicketState.WITHDRAWN, TicketState.PENDING}),
    TicketState.WITHDRAWN: frozenset(),
}


def file(
    state: State,
    presence: Presence,
    config: FederationConfig,
    name: str,
    form: RequestForm,
    *,
    ticket_id: str,
    now: float,
) -> tuple[State, Ticket, bool]:
    """Opens a ticket, or finds the existing one (third value True). Refuses what the policy does not permit."""
    member = state.members.get(name)
    if member is None or member.status is MemberStatus.READMITTED:
        raise NotFound(f"{name} is not in this federation: there is nothing to forget", client=name)
    mine = [t for t in state.tickets.values() if t.client == name and t.membership == member.membership]
    known = _existing(mine, form)
    if known is not None:
        return state, known, True
    # A request that the method cannot serve is refused now and not after weeks.
    refused = methods.method_of(config.forgetting).refuse(name, form, state, config)
    if refused is not None:
        raise NotNow(refused, method=config.forgetting.method)
    if form.by is FiledBy.CLIENT:
        forget_budget.require(mine, config.limits, now)
    replaced = _replaced(mine, form)
    state, member = _replace_failed(state, member, replaced, form, ticket_id, now)
    request = _checked(form, config.forgetting, member.samples, now)
    how = "filed" if form.by is FiledBy.CLIENT else f"filed by the {form.by} on behalf of {name}"
    ticket = Ticket(
        id=ticket_id,
        client=name,
        membership=member.membership,
        request=request,
        deadline_at=request.received_at + config.forgetting.deadline_days * _DAY,
        history=(TicketEvent(state=TicketState.PENDING, at=now, note=how),),
        for_reopened=any(t.unserved and (form.scope is Scope.CLIENT or t == replaced) for t in mine),
        replaces=replaced.id if replaced is not None else "",
    )
    if form.by is FiledBy.OPERATOR and not worker_alive(presence, name, config, now):
        ticket = _fallen_back(ticket, state, config, "absent") or ticket
    state = _close_others(state, mine, ticket, now)
    ticket = _with_taken(state, ticket)
    ticket = forget_budget.weighed(state, config.limits, member, ticket, now)
    return _filed_state(state, config, ticket, now), ticket, False


def _existing(mine: list[Ticket], form: RequestForm) -> Ticket | None:
    """The ticket that answers a repeated request, or the one for the whole client that includes it."""
    same = (t for t in mine if t.request.key == form.key)
    whole = (t for t in mine if t.whole_client and (t.open or t.state is TicketState.COMPLETED))
    return next(same, None) or next(whole, None)


def _replace_failed(
    state: State, member: Member, old: Ticket | None, form: RequestForm, ticket_id: str, now: float
) -> tuple[State, Member]:
    """Withdraws the ticket that this request names as its predecessor, in one change with filing the new one.

    The samples so belong to a request at every moment.
    """
    if old is None:
        return state, member
    if old.state is TicketState.FAILED:
        state = move(state, old.id, TicketState.WITHDRAWN, now, f"asked again as {ticket_id}")
    if form.forget_samples + form.retain_samples == member.samples + old.forget_samples:
        state = _add_samples(state, member.name, old.forget_samples)
    return state, state.members[member.name]


def _close_others(state: State, mine: list[Ticket], ticket: Ticket, now: float) -> State:
    """Withdraws tickets that a request for the whole client includes. Refuses samples while another ticket waits."""
    for other in mine:
        if other.waiting and not ticket.whole_client:
            raise NotNow(
                f"ticket {other.id} of {ticket.client} is {other.state}: wait until it is applied, or withdraw it first",
                ticket=other.id,
            )
    if not ticket.whole_client:
        # Samples of another failed request are still to be forgotten.
        return state
    for other in mine:
        if other.state is TicketState.PENDING:
            # The announced count stays: these samples are out of training, and the client does not know this step yet.
            why = f"taken over by {ticket.id} for the whole client"
            state = move(state, other.id, TicketState.WITHDRAWN, now, why, taken_over=ticket.id)
        elif other.state is TicketState.FAILED:
            taken = None if other.whole_client else ticket.id
            state = move(state, other.id, TicketState.WITHDRAWN, now, f"asked again as {ticket.id}", taken_over=taken)
    return state


def _with_taken(state: State, ticket: Ticket) -> Ticket:
    """The ticket for a whole client with the samples that its earlier requests took out of training and did not unlearn."""
    if not ticket.whole_client:
        return ticket
    mine = [t for t in state.tickets.values() if (t.client, t.membership) == (ticket.client, ticket.membership)]
    replaced = {t.replaces for t in mine}
    taken = [t for t in mine if t.taken_over is not None and t.applied is None and t.id not in replaced]
    samples = sum(t.forget_samples for t in taken)
    return replace(ticket, took_over=tuple(t.id for t in taken), taken_samples=samples)


def _filed_state(state: State, config: FederationConfig, ticket: Ticket, now: float) -> State:
    """The state with a new ticket: noted in the audit log, its samples and its client out of training."""
    asked, name = ticket.request, ticket.client
    facts: dict[str, Any] = {"ticket": ticket.id, "client": name, "scope": asked.scope, "mode": asked.mode}
    facts |= {"kappa": asked.kappa, "eta_u": asked.eta_u, "reference": asked.reference, "by": asked.filed_by}
    if ticket.adaptive:
        facts["strength"] = asked.strength
    if ticket.on_hold:
        facts["held"] = ticket.on_hold
    state = state.with_ticket(ticket).note("ticket.filed", now, **facts)
    if not ticket.whole_client:
        state = _add_samples(state, name, -ticket.forget_samples)
    serving = methods.serving(config.forgetting, ticket)
    ordinary = state.round is not None and state.round.kind in (RoundKind.TRAIN, RoundKind.RECOVER)
    if serving.as_it_was and ordinary:
        state = rounds.abandon(state, now, f"{serving.name} forgets {name} in the model as it is")
    return rounds.drop_client(state, name, now)


def withdraw(state: State, name: str, ticket_id: str, now: float) -> tuple[State, Ticket]:
    """Takes a request back. Possible until the ticket is scheduled, and again after it failed."""
    ticket = find(state, name, ticket_id)
    if ticket.state is TicketState.WITHDRAWN:
        return state, ticket
    if ticket.state not in (TicketState.PENDING, TicketState.FAILED) or ticket.applied is not None:
        raise NotNow(
            f"ticket {ticket_id} is {ticket.state} and can no longer be withdrawn", ticket=ticket_id, state=ticket.state
        )
    state = move(state, ticket_id, TicketState.WITHDRAWN, now, "withdrawn by the client")
    if not ticket.whole_client:
        state = _add_samples(state, name, ticket.forget_samples)
    if ticket.reopened or ticket.for_reopened:
        state = model_versions.release(state)
    return state, state.tickets[ticket_id]


def approve(state: State, ticket_id: str, now: float) -> State:
    """Operator approval of a request beyond the budget: it is served."""
    ticket = find(state, None, ticket_id)
    return state.with_ticket(replace(ticket, on_hold=None)).note("ticket.allowed", now, ticket=ticket_id)


def measure(
    state: State, name: str, ticket_id: str, version: int, measured: Measurement, now: float
) -> tuple[State, Ticket]:
    """Records what the target measured itself. The first answer for a version stays."""
    ticket = find(state, name, ticket_id)
    applied = ticket.applied
    if applied is None or version not in ticket.versions:
        raise NotFound(f"model {version} is not one of ticket {ticket_id}", ticket=ticket_id)
    if version in applied.measurements:
        return state, ticket
    measurements = {**applied.measurements, version: measured}
    ticket = replace(ticket, applied=replace(applied, measurements=measurements))
    state = state.with_ticket(ticket)
    return state.note("ticket.measured", now, ticket=ticket_id, version=version, by="client"), ticket


def find(state: State, name: str | None, ticket_id: str) -> Ticket:
    """The ticket. For a client, tickets of other clients do not exist; None asks as the operator."""
    ticket = state.tickets.get(ticket_id)
    if ticket is None or (name is not None and ticket.client != name):
        raise NotFound(f"no ticket {ticket_id}", ticket=ticket_id)
    return ticket


def move(state: State, ticket_id: str, to: TicketState, now: float, note: str, **facts: Any) -> State:
    """The state with a ticket in its next state. Raises AssertionError for a move that the life cycle does not have."""
    ticket = state.tickets[ticket_id]
    if to not in _MOVES[ticket.state]:
        raise AssertionError(f"ticket {ticket_id} cannot go from {ticket.state} to {to}")
    ticket = replace(ticket, state=to, history=(*ticket.history, TicketEvent(state=to, at=now, note=note)), **facts)
    return state.with_ticket(ticket).note(f"ticket.{to}", now, ticket=ticket_id, client=ticket.client, why=note)


def remark(state: State, ticket_id: str, now: float, note: str) -> State:
    """The state with a line in the ticket's history. The ticket stays in its state."""
    ticket = state.tickets[ticket_id]
    event = TicketEvent(state=ticket.state, at=now, note=note)
    state = state.with_ticket(replace(ticket, history=(*ticket.history, event)))
    return state.note("ticket.step", now, ticket=ticket_id, client=ticket.client, why=note)


def expire(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
    """Fails tickets that are past their deadline while their client is away, or gives them to the fallback.

    A ticket whose client is alive, or that was filed a moment ago, is still served. So is one whose method does not
    need the client. A reset that is under way needs no client and serves all tickets. A request of a client that no model
    contains completes as soon as other work is over.
    """
    if state.round is not None and state.round.kind is RoundKind.RESET:
        return state
    for ticket in state.tickets.values():
        if ticket.state is not TicketState.PENDING or ticket.applied is not None:
            continue
        method = methods.serving(config.forgetting, ticket)
        hopeless = method.hopeless(ticket, state, config)
        if hopeless is not None:
            state = without_method(state, config, ticket, "too late", hopeless, now)
            continue
        if now < ticket.deadline_at or not method.requires.target_takes_part:
            continue
        if not state.members[ticket.client].first_round:
            continue
        new = now < ticket.request.filed_at + config.plan.absent_seconds
        if not new and not worker_alive(presence, ticket.client, config, now):
            why = "deadline passed: the client never came back for its unlearning round"
            state = without_method(state, config, ticket, "absent", why, now)
    return state


def without_method(state: State, config: FederationConfig, ticket: Ticket, short: str, why: str, now: float) -> State:
    """The federation's method cannot serve this ticket: the fallback does, or the ticket fails."""
    fallen_back = _fallen_back(ticket, state, config, short)
    if fallen_back is None:
        return move(state, ticket.id, TicketState.FAILED, now, why)
    facts = {"ticket": ticket.id, "client": ticket.client, "method": config.forgetting.fallback}
    return state.with_ticket(fallen_back).note("ticket.fell_back", now, **facts, why=why)


def _fallen_back(ticket: Ticket, state: State, config: FederationConfig, why: str) -> Ticket | None:
    """The ticket as one that the fallback serves; None without a fallback, or where it is not needed or cannot."""
    fallback = methods.fallback_of(config.forgetting)
    needed = methods.serving(config.forgetting, ticket).requires.target_takes_part
    if fallback is None or not needed:
        return None
    form = RequestForm(key=ticket.request.key, scope=ticket.request.scope, by=ticket.request.filed_by)
    if fallback.refuse(ticket.client, form, state, config) is not None:
        return None
    # The pause was for the target to come back.
    return replace(ticket, fallback=why, not_before=None)


def _checked(form: RequestForm, policy: Forgetting, samples: int, now: float) -> Request:
    """The request with every choice made. Refuses values outside the operator's limits."""
    mode = form.mode or Mode(policy.mode)
    strength = _strength(form, policy, mode)
    usual = min(policy.dose_epochs, policy.max_epochs) if strength is Strength.AUTO else policy.epochs
    epochs = form.epochs or usual
    # Strength belongs to PUF. Other methods refuse a request that names one.
    open_strength = form.kappa is None and form.eta_u is None and strength is Strength.FIXED
    kappa = policy.kappa if open_strength and policy.method == "puf" else form.kappa
    if mode is Mode.SPECIAL and not policy.special_allowed:
        raise InvalidArgument("this federation does not accept PUF-Special: ask for mode regular")
    if kappa is not None and not policy.min_kappa <= kappa <= policy.max_kappa:
        raise InvalidArgument(f"kappa must lie between {policy.min_kappa:g} and {policy.max_kappa:g}, not {kappa:g}")
    if form.eta_u is not None and not 0 < form.eta_u <= policy.max_eta_u:
        raise InvalidArgument(f"eta_u must be above 0 and at most {policy.max_eta_u:g}, not {form.eta_u:g}")
    if mode is Mode.SPECIAL and form.eta_u is not None and form.eta_u > policy.max_total_kappa:
        raise InvalidArgument(
            f"in PUF-Special eta_u is the strength itself: at most {policy.max_total_kappa:g}, not {form.eta_u:g}"
        )
    if not 1 <= epochs <= policy.max_epochs:
        raise InvalidArgument(f"unlearning epochs must lie between 1 and {policy.max_epochs}, not {epochs}")
    single = form.scope is Scope.SAMPLES
    if single:
        _check_samples(form, samples)
    return Request(
        key=validation.key(form.key),
        scope=form.scope,
        mode=mode,
        flip=form.flip or Flip(policy.flip),
        kappa=kappa,
        eta_u=form.eta_u,
        strength=strength,
        epochs=epochs,
        forget_samples=form.forget_samples if single else None,
        retain_samples=form.retain_samples if single else None,
        reference=form.reference[:200],
        filed_at=now,
        received_at=now if form.received_at is None else validation.day(form.received_at, now),
        filed_by=form.by,
    )


def _strength(form: RequestForm, policy: Forgetting, mode: Mode) -> Strength:
    """Adaptive where the request or the policy wants it. Refuses it where it is not defined."""
    named = form.kappa is not None or form.eta_u is not None
    if form.strength is Strength.AUTO and (named or mode is Mode.SPECIAL):
        raise InvalidArgument(
            "adaptive strength works with mode regular and without kappa and eta_u: leave them out, or name no strength"
        )
    open_choice = form.strength is None and not named and mode is Mode.REGULAR and policy.method == "puf"
    return form.strength or (Strength(policy.strength) if open_choice else Strength.FIXED)


def _check_samples(form: RequestForm, samples: int) -> None:
    if form.forget_samples < 1:
        raise InvalidArgument("sample scope needs at least one sample to forget")
    if form.retain_samples < 1:
        raise InvalidArgument("no sample would remain: ask for the whole client to be forgotten")
    if form.forget_samples + form.retain_samples != samples:
        raise InvalidArgument(
            f"{form.forget_samples} to forget and {form.retain_samples} to retain do not add up to the {samples} "
            "samples this client announced"
        )


def _replaced(mine: list[Ticket], form: RequestForm) -> Ticket | None:
    """The ticket that this request names as its predecessor; its samples count once."""
    if not form.replaces or form.scope is not Scope.SAMPLES:
        return None
    named = next((t for t in mine if t.id == form.replaces), None)
    over = (TicketState.FAILED, TicketState.WITHDRAWN)
    if named is None or named.whole_client or named.state not in over:
        raise NotNow(f"ticket {form.replaces} is no request for samples that could be asked for again")
    if named.forget_samples != form.forget_samples:
        raise InvalidArgument(
            f"ticket {named.id} was about {named.forget_samples} samples, not {form.forget_samples}: it cannot be "
            "replaced by this request"
        )
    return named


def _add_samples(state: State, name: str, change: int) -> State:
    return state.with_member(with_samples(state.members[name], change))
