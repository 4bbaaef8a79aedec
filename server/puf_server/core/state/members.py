"""The roster: one record per client name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from puf_server.core.state.rounds import Part


class MemberStatus(StrEnum):
    ACTIVE = "active"
    FORGOTTEN = "forgotten"
    # Forgotten, and approved by the operator to join again.
    READMITTED = "readmitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedUpdate:
    """Names an update that a committed round has summed."""

    round: int
    attempt: int
    part: Part
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One name on the roster. `samples` is the announced count, the weight of its updates."""

    name: str
    membership: int
    status: MemberStatus
    samples: int
    holdout: int
    # Counts the sessions of this name. It is part of the session, so that older sessions can be recognised.
    generation: int
    session: str
    # The process that holds the session.
    instance: str
    device: str
    joined_at: float
    # The first and the last round with a folded update of this membership; 0: none.
    first_round: int = 0
    last_round: int = 0
    # The largest count announced so far, less the samples of requests; 0 in records of older versions.
    most_samples: int = 0
    # Samples of the last folded update: its weight in that round's mean.
    last_samples: int = 0
    # Unlabeled samples for distillation.
    unlabeled: int = 0
    # Why it waits for operator approval and gets no training work.
    on_hold: str | None = None
    # It announces more than `max_share` of all samples, without operator approval.
    outweighs: bool = False
    approved: bool = False
    # Its worker can run the routine of adaptive strength.
    adapts: bool = False
    # Its updates in the last committed round that has any, one for each part. The client may send them again if the
    # acknowledgement was lost.
    counted: tuple[CountedUpdate, ...] = ()

    @property
    def trains(self) -> bool:
        return self.status is MemberStatus.ACTIVE and self.samples > 0 and not self.on_hold and not self.outweighs
