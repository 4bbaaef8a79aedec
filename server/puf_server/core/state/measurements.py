"""What clients measured of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from puf_common.receipts.evidence import Attack
from puf_common.receipts.gap import ClassTable, Gap
from puf_common.receipts.ranks import RankComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over the samples of one or several clients."""

    samples: int
    loss_sum: float
    score_sum: float
    # Counts by the model's confidence in the true label; empty if not stated.
    confidences: tuple[int, ...] = ()
    # The confidences by class; None if not stated. A sum of sums has none.
    classes: ClassTable | None = None

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            samples=self.samples + other.samples,
            loss_sum=self.loss_sum + other.loss_sum,
            score_sum=self.score_sum + other.score_sum,
            confidences=tuple(a + b for a, b in zip(self.confidences, other.confidences, strict=True))
            if self.confidences and other.confidences
            else self.confidences or other.confidences,
        )

    @property
    def score(self) -> float:
        return self.score_sum / self.samples

    @property
    def loss(self) -> float:
        return self.loss_sum / self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledTable:
    """The hold-outs of several clients by class."""

    table: ClassTable
    clients: int = 1

    def plus(self, more: ClassTable) -> PooledTable:
        return PooledTable(table=self.table + more, clients=self.clients + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An open measurement of one model version on the clients' hold-outs."""

    id: int
    version: int
    asked: tuple[str, ...]
    opened_at: float
    deadline_at: float | None = None
    answers: Mapping[str, Sums] = field(default_factory=dict)
    # Whether training samples are measured too. Membership attacks of the target are calibrated with them.
    training_side: bool = False
    training: Mapping[str, Sums] = field(default_factory=dict)
    # Confidences on the hold-outs, by number of classes. Only sums over clients are stored, never the table of one client.
    tables: Mapping[int, PooledTable] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in self.asked if name not in self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What the owner of a ticket measured of one model; None where it could not."""

    # On the data to forget.
    forget: Sums
    holdout: Sums | None = None
    yeom: Attack | None = None
    song: Attack | None = None
    gap: Gap | None = None
    # Ranks against its own hold-out, and against those of other clients by class.
    own: RankComparison | None = None
    pool: RankComparison | None = None
