"""Models as exact books: which clients a model contains, how much of each, and with which sign.

The bytes of a model and of an update are numbers that derive from its book.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from puf_common.tensors.manifest import Manifest, TensorSpec

__all__ = ["MANIFEST", "Contribution", "Update", "Weights", "folded", "initial", "model_payload", "numbers"]

# Name and membership: a forgotten name that joined again is another member.
Who = tuple[str, int]
_SIZE = 12
MANIFEST = Manifest((TensorSpec("w", "f64", (_SIZE,)),))


def numbers(text: str) -> NDArray[np.float64]:
    """Numbers below 4096 that derive from a text: multiples of 2^-28, so that sums and differences are exact."""
    drawn = np.frombuffer(hashlib.shake_256(text.encode()).digest(8 * _SIZE), "<u8")
    return (drawn >> np.uint64(24)).astype(np.float64) / 2.0**28


def model_payload(digest: str) -> bytes:
    return numbers(f"model {digest}").tobytes()


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
    routine: str = "train"
    applied_scale: float = 1.0

    @property
    def difference(self) -> NDArray[np.float64]:
        """What training added to the base model, before scaling."""
        what = f"{self.client}|{self.membership}|{self.part}|{self.round}|{self.base}|{sorted(self.ids)}|{self.epochs}"
        return numbers(f"{what}|{self.routine}")

    @property
    def payload(self) -> bytes:
        return (self.difference * self.applied_scale).tobytes()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.payload).hexdigest()

    def scaled(self, scale: float) -> Update:
        return replace(self, applied_scale=scale)


@dataclass(frozen=True)
class Contribution:
    """An update in a sum. `amount` is its share times its scale."""

    update: Update
    digest: str
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
    # Per membership: the samples of all updates that were not negated.
    samples: Mapping[Who, frozenset[int]] = field(default_factory=dict)

    @property
    def knows(self) -> set[Who]:
        return {who for who, (plus, _) in self.totals.items() if plus}


def initial() -> Weights:
    return Weights(digest=hashlib.sha256(b"w_0").hexdigest(), base="", contributions=(), totals={})


def folded(
    base: Weights,
    parts: Sequence[tuple[Update, str, int, float, bool, str]],
    denominator: int | None,
    server_lr: float,
    rule: str = "fold",
) -> Weights:
    """The new model. `parts` are (update, digest, samples, full scale, negated, ticket). Other rules change bits only."""
    n = denominator if denominator is not None else sum(part[2] for part in parts)
    rate = Fraction(server_lr)
    contributions = tuple(
        Contribution(update, digest, rate * Fraction(samples, n) * Fraction(scale), negated, ticket)
        for update, digest, samples, scale, negated, ticket in parts
    )
    totals, samples = dict(base.totals), dict(base.samples)
    for c in contributions:
        who = (c.update.client, c.update.membership)
        if not c.negated:
            samples[who] = samples.get(who, frozenset()) | c.update.ids
        plus, minus = totals.get(who, (Fraction(0), Fraction(0)))
        totals[who] = (plus, minus + c.amount) if c.negated else (plus + c.amount, minus)
    text = base.digest + ("" if rule == "fold" else rule) + "".join(f"|{c.digest}*{c.amount}" for c in contributions)
    return Weights(
        digest=hashlib.sha256(text.encode()).hexdigest(),
        base=base.digest,
        contributions=contributions,
        totals=totals,
        samples=samples,
    )
