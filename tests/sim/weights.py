"""Models as exact books: which clients a model contains, how much of each, and with which sign."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["Contribution", "Update", "Weights", "folded", "initial"]

# Name and membership: a forgotten name that joined again is another member.
Who = tuple[str, int]


@dataclass(frozen=True)
class Update:
    """An update. It depends only on what was trained, so that training again gives the same bits."""

    client: str
    membership: int
    part: str
    round: int
    base: str
    ids: frozenset[int]
    epochs: float
    applied_scale: float

    @property
    def digest(self) -> str:
        text = f"{self.client}|{self.membership}|{self.part}|{self.round}|{self.base}|{sorted(self.ids)}|{self.epochs}"
        return hashlib.sha256(f"{text}|{self.applied_scale!r}".encode()).hexdigest()


@dataclass(frozen=True)
class Contribution:
    """An update in a sum. `amount` is its share times its scale."""

    update: Update
    amount: Fraction
    negated: bool
    ticket: str


@dataclass(frozen=True)
class Weights:
    digest: str
    base: str
    contributions: tuple[Contribution, ...]
    # Per membership: the sums of positive and of negated amounts.
    totals: Mapping[Who, tuple[Fraction, Fraction]]

    @property
    def knows(self) -> set[Who]:
        return {who for who, (plus, _) in self.totals.items() if plus}


def initial() -> Weights:
    return Weights(digest=hashlib.sha256(b"w_0").hexdigest(), base="", contributions=(), totals={})


def folded(
    base: Weights,
    parts: Sequence[tuple[Update, int, float, bool, str]],
    denominator: int | None,
    server_lr: float,
    rule: str = "fold",
) -> Weights:
    """The new model. `parts` are (update, samples, full scale, negated, ticket). Other rules change bits, not books."""
    n = denominator if denominator is not None else sum(samples for _, samples, *_ in parts)
    rate = Fraction(server_lr)
    contributions = tuple(
        Contribution(update, rate * Fraction(samples, n) * Fraction(scale), negated, ticket)
        for update, samples, scale, negated, ticket in parts
    )
    totals = dict(base.totals)
    for c in contributions:
        who = (c.update.client, c.update.membership)
        plus, minus = totals.get(who, (Fraction(0), Fraction(0)))
        totals[who] = (plus, minus + c.amount) if c.negated else (plus + c.amount, minus)
    text = (
        base.digest
        + ("" if rule == "fold" else rule)
        + "".join(f"|{c.update.digest}*{c.amount}" for c in contributions)
    )
    return Weights(
        digest=hashlib.sha256(text.encode()).hexdigest(), base=base.digest, contributions=contributions, totals=totals
    )
