"""PUF: unlearning by negated pseudo-gradients.

Every upload u_i = scale_i * Delta_i enters w <- w + sum (n_i / n) u_i. A target's scale is negative, so

    Regular   w - kappa * Delta_u + eta_r * sum over retained (n_i / n) Delta_i
    Special   w - kappa * Delta_u

with n frozen over everybody who takes part and scale_u = -kappa * n / n_u: kappa means the same for any number and size
of clients. The paper's literal rate is scale_u = -eta_u, whose effect grows with the target's share n_u / n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from puf_server.core.state import Member, Part, Slot, Ticket

__all__ = ["RoundPlan", "Target", "effective_kappa", "plan"]


@dataclass(frozen=True, slots=True)
class Target:
    ticket: Ticket
    member: Member

    @property
    def forget_samples(self) -> int:
        return self.ticket.forget_samples if self.ticket.scope == "samples" else self.member.samples


@dataclass(frozen=True, slots=True)
class RoundPlan:
    slots: tuple[Slot, ...]
    denominator: int


def plan(
    targets: Sequence[Target], retained: Sequence[Member], *, mode: str, retained_rate: float, epochs: float
) -> RoundPlan:
    """Who trains what in the unlearning round, and with which scale it enters. `retained` is ignored in Special."""
    ordinary = [(m, Part.MAIN, "", "client") for m in retained] if mode == "regular" else []
    remaining = [
        (t.member, Part.RETAIN, t.ticket.id, t.ticket.flip)
        for t in targets
        if t.ticket.scope == "samples" and mode == "regular"
    ]
    n = sum(m.samples for m, *_ in (*ordinary, *remaining)) + sum(t.forget_samples for t in targets)
    slots = [
        Slot(
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
    slots += [
        Slot(
            client=t.member.name,
            membership=t.member.membership,
            part=Part.FORGET if t.ticket.scope == "samples" else Part.MAIN,
            samples=t.forget_samples,
            scale=_scale(t, n),
            flip=t.ticket.flip,
            epochs=float(t.ticket.epochs),
            ticket=t.ticket.id,
            negated=True,
        )
        for t in targets
    ]
    return RoundPlan(tuple(sorted(slots, key=lambda s: (s.client, _ORDER[s.part]))), n)


def effective_kappa(target: Target, n: int) -> float:
    """The real multiplier on the target's update."""
    if target.ticket.kappa is not None:
        return target.ticket.kappa
    return float(target.ticket.eta_u or 0.0) * target.forget_samples / n


def _scale(target: Target, n: int) -> float:
    if target.ticket.kappa is not None:
        return -target.ticket.kappa * n / target.forget_samples
    return -float(target.ticket.eta_u or 0.0)


_ORDER = {Part.MAIN: 0, Part.RETAIN: 0, Part.FORGET: 1}
