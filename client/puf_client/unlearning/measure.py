"""What a client says about a model: sums for the federation, membership attacks for itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from puf_common.errors import InvalidArgument
from puf_common.receipts.evidence import Attack, Verdict, histogram, judge, song, yeom
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

if TYPE_CHECKING:
    from puf_client.routines import PerSample

__all__ = ["WORST_LOSS", "Measured", "Seen", "measured", "summed"]

# What a single sample's loss counts at most.
WORST_LOSS = 1e6


@dataclass(frozen=True)
class Seen:
    """What one model does with the data to be forgotten and, where there is any, with the client's own hold-out."""

    forget: PerSample
    holdout: PerSample | None


@dataclass(frozen=True)
class Measured:
    """What is told of one model; None where it could not be found out."""

    forget: tk.EvaluationSums | None
    holdout: tk.EvaluationSums | None = None
    yeom: Attack | None = None
    song: Attack | None = None

    @property
    def verdict(self) -> Verdict | None:
        return judge((self.yeom, self.song))

    @classmethod
    def told(cls, message: tk.Measurement) -> Measured:
        """One that was reported earlier."""
        return cls(
            message.forget,
            message.holdout if message.HasField("holdout") else None,
            _attack(message.yeom) if message.HasField("yeom") else None,
            _attack(message.song) if message.HasField("song") else None,
        )

    def request(self, ticket_id: str, version: int) -> pb.ReportMeasurementRequest:
        return pb.ReportMeasurementRequest(
            ticket_id=ticket_id,
            version=version,
            forget=self.forget,
            holdout=self.holdout,
            yeom=tk.MembershipAttack(**asdict(self.yeom)) if self.yeom else None,
            song=tk.MembershipAttack(**asdict(self.song)) if self.song else None,
        )


def summed(samples: PerSample) -> tk.EvaluationSums:
    """Sums and binned confidences: all that leaves a client of what it measured.

    A model that was driven far away may give losses that are no number. They are the worst there is, not a reason to say
    nothing: whoever waits for the measurement would wait for ever.
    """
    losses = np.minimum(np.nan_to_num(samples.losses, nan=WORST_LOSS, posinf=WORST_LOSS), WORST_LOSS)
    return tk.EvaluationSums(
        samples=len(losses),
        loss_sum=float(losses.sum()),
        score_sum=float(np.nan_to_num(samples.scores).sum()),
        confidences=histogram(np.nan_to_num(samples.confidences)),
    )


def measured(seen: Seen, retained: tk.EvaluationSums | None) -> Measured:
    """Both attacks, calibrated with the retained clients' training side and run on the client's own data."""
    forget, holdout = summed(seen.forget), summed(seen.holdout) if seen.holdout is not None else None
    if seen.holdout is None or retained is None:
        return Measured(forget, holdout)
    found: dict[str, Attack] = {}
    try:
        found["yeom"] = yeom(
            seen.forget.losses, seen.holdout.losses, loss_sum=retained.loss_sum, samples=retained.samples
        )
        found["song"] = song(seen.forget.confidences, seen.holdout.confidences, members=list(retained.confidences))
    except InvalidArgument:
        # Retained clients that told less: what can be found out without it stands.
        pass
    return Measured(forget, holdout, found.get("yeom"), found.get("song"))


def _attack(message: tk.MembershipAttack) -> Attack:
    return Attack(
        threshold=message.threshold,
        forget_members=message.forget_members,
        forget_samples=message.forget_samples,
        holdout_members=message.holdout_members,
        holdout_samples=message.holdout_samples,
    )
