"""The roster: one record per client name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Member", "MemberStatus"]


class MemberStatus(StrEnum):
    ACTIVE = "active"
    FORGOTTEN = "forgotten"
    # Forgotten once, allowed by the operator to join again.
    READMITTED = "readmitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One identity on the roster. `samples` is the announced count, which weighs its updates."""

    name: str
    membership: int
    status: MemberStatus
    samples: int
    holdout: int
    # Counts the worker sessions of this name; part of the session, so that an older one is known as such.
    generation: int
    session: str
    # The process that holds the session.
    instance: str
    device: str
    joined_at: float
    # Rounds in which an update of this membership was folded first and last; 0 for none.
    first_round: int = 0
    last_round: int = 0
    # Samples of the update that was folded last: its weight in that round's mean.
    last_samples: int = 0
    # Unlabeled samples that it can distill a model on; for methods that need data beside the clients' own.
    unlabeled: int = 0
    # Why it gets no training work until the operator allows it; empty when it does.
    on_hold: str | None = None
    # Announces more than its share of all samples, and the operator has not allowed it.
    outweighs: bool = False
    approved: bool = False

    @property
    def trains(self) -> bool:
        return self.status is MemberStatus.ACTIVE and self.samples > 0 and not self.on_hold and not self.outweighs
