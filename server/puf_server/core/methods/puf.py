"""PUF: unlearning by negated pseudo-gradients.

Every upload u_i = scale_i * Delta_i enters w <- w + sum (n_i / n) u_i. A target's scale is negative, so

    Regular   w - kappa * Delta_u + eta_r * sum over retained (n_i / n) Delta_i
    Special   w - kappa * Delta_u

with n frozen over all clients of the round and scale_u = -kappa * n / n_u: kappa means the same for any number and size
of clients. The paper's literal rate is scale_u = -eta_u. Its effect grows with the target's share n_u / n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.methods.base import Method, Options, Requirements, Step, Target, View
from puf_server.core.state.members import Member
from puf_server.core.state.rounds import Assignment, Part
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Flip, Mode, RequestForm, Ticket


class PufOptions(Options):
    compat: Literal["paper", "author-code"] = Field(
        "paper",
        description="author-code: for single samples, n of PUF-Special counts all samples of a target; matters for eta_u only",
    )
    rest: bool = Field(
        True, description="for single samples in Regular: the target also sends an update of its other samples"
    )


class Puf(Method):
    name = "puf"
    summary = "one round in which the target's update enters negated and scaled"
    requires = Requirements(target_takes_part=True, retained_take_part=True)
    options_type = PufOptions
    options: PufOptions

    def refuse(self, client: str, form: RequestForm, state: State, config: FederationConfig) -> str | None:
        """None. Mode, strength and epochs belong to this method; filing compares them with the operator's limits."""
        return None

    def label(self, ticket: Ticket) -> str:
        return f"puf-{ticket.request.mode}"

    def ready(self, ticket: Ticket, view: View) -> bool:
        """Whether the target is alive and, in Regular, enough retained clients are."""
        retained = roster.retained(view.state)
        alive = sum(view.alive(m.name) for m in retained)
        enough = not retained or alive >= view.config.forgetting.min_retained
        return view.alive(ticket.client) and (enough or ticket.request.mode is Mode.SPECIAL)

    def choose(self, waiting: Sequence[Ticket], view: View) -> list[Ticket]:
        """Tickets with the mode of the oldest one, up to the limit on the sum of kappa."""
        chosen: list[Ticket] = []
        total = 0.0
        for ticket in (t for t in waiting if t.request.mode is waiting[0].request.mode):
            strength = _strength(ticket, view)
            if chosen and total + strength > view.config.forgetting.max_total_kappa:
                break
            chosen.append(ticket)
            total += strength
        return chosen

    def step(self, view: View) -> Step:
        return planned_step(view, self.options)

    def possible(self, view: View) -> bool:
        return view.started.mode is not Mode.REGULAR or not roster.no_client_remains(view.state)

    def enough_came(self, view: View, retained: int) -> bool:
        """Whether enough retained updates came. With too few, a Regular round discloses a lone target's update."""
        enough = retained >= view.config.forgetting.min_retained or not roster.retained(view.state)
        return view.started.mode is not Mode.REGULAR or enough


def planned_step(view: View, options: PufOptions) -> Step:
    """The unlearning round of the job's targets on the federation's model."""
    mode = view.started.mode
    planned = plan(
        view.targets,
        _others(view) if mode is Mode.REGULAR else [],
        mode=mode,
        retained_rate=view.config.forgetting.retained_rate,
        epochs=float(view.config.recipe.epochs),
        whole_n=options.compat == "author-code",
        with_rest=options.rest,
    )
    return Step(
        base=view.state.version,
        assignments=planned.assignments,
        denominator=planned.denominator,
        decays=True,
        last=True,
    )


@dataclass(frozen=True, slots=True)
class RoundPlan:
    assignments: tuple[Assignment, ...]
    denominator: int


def plan(
    targets: Sequence[Target],
    retained: Sequence[Member],
    *,
    mode: Mode | None,
    retained_rate: float,
    epochs: float,
    whole_n: bool = False,
    with_rest: bool = True,
) -> RoundPlan:
    """The assignments of the unlearning round with their scales, and n. In Special, `retained` is ignored.

    `whole_n` counts the remaining samples of a target in n although it does not train on them, as the authors' code does
    in Special. In Regular it trains on them, and n is the same. Without `with_rest` it trains on its forget data only.
    """
    ordinary = [(m, Part.MAIN, "", Flip.CLIENT) for m in retained] if mode is Mode.REGULAR else []
    remaining = [
        (t.member, Part.RETAIN, t.ticket.id, t.ticket.request.flip)
        for t in targets
        if not t.ticket.whole_client and mode is Mode.REGULAR and with_rest
    ]
    n = sum(m.samples for m, *_ in (*ordinary, *remaining)) + sum(t.forget_samples for t in targets)
    if whole_n and mode is Mode.SPECIAL:
        n += sum(t.member.samples for t in targets if not t.ticket.whole_client)
    assignments = [
        Assignment(
            client=member.name,
            membership=member.membership,
            part=part,
            samples=member.samples,
            scale=retained_rate,
            flip=flip,
            epochs=epochs,
            ticket=ticket,
        )
        for member, part, ticket, flip in (*ordinary, *remaining)
    ]
    assignments += [
        t.assignment(
            samples=t.forget_samples,
            scale=_scale(t, n),
            flip=t.ticket.request.flip,
            epochs=float(t.ticket.epochs),
            negated=True,
        )
        for t in targets
    ]
    return RoundPlan(tuple(sorted(assignments, key=lambda s: (s.client, _ORDER[s.part]))), n)


def effective_kappa(target: Target, n: int) -> float:
    """The factor on the target's update in the sum."""
    if target.ticket.kappa is not None:
        return target.ticket.kappa
    return float(target.ticket.request.eta_u or 0.0) * target.forget_samples / n


def _scale(target: Target, n: int) -> float:
    """The factor on the target's upload. Under adaptive strength the target multiplies it with its kappa."""
    kappa = 1.0 if target.ticket.adaptive else target.ticket.kappa
    if kappa is not None:
        return -kappa * n / target.forget_samples
    return -float(target.ticket.request.eta_u or 0.0)


def _others(view: View) -> list[Member]:
    """Retained clients of a Regular round: the plan's share, but at least as many as the round needs to close."""
    at_least = view.config.forgetting.min_retained
    return roster.cohort(
        roster.retained(view.state), view.state, view.presence, view.config, view.now, at_least=at_least
    )


def _strength(ticket: Ticket, view: View) -> float:
    target = Target(ticket, view.state.members[ticket.client])
    others = _others(view) if ticket.request.mode is Mode.REGULAR else []
    return effective_kappa(target, sum(m.samples for m in others) + target.forget_samples)


_ORDER = {Part.MAIN: 0, Part.RETAIN: 0, Part.FORGET: 1}
