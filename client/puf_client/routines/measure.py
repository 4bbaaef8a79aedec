"""What a client reports about a model: sums for the federation, and membership attacks on its own data."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from puf_common.errors import InvalidArgument
from puf_common.receipts.evidence import Attack, Verdict, histogram, judge, song, yeom
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

if TYPE_CHECKING:
    from puf_client.routines.evaluate import PerSample

# Upper bound of the loss that one sample contributes.
WORST_LOSS = 1e6


@dataclass(frozen=True)
class ModelMeasurement:
    """What a client reports about one model; None where it could not be measured."""

    forget: tk.EvaluationSums | None
    holdout: tk.EvaluationSums | None = None
    yeom: Attack | None = None
    song: Attack | None = None

    @property
    def verdict(self) -> Verdict | None:
        return judge((self.yeom, self.song))

    @classmethod
    def from_pb(cls, message: tk.Measurement) -> ModelMeasurement:
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
    """Returns sums and binned confidences: the only values of an evaluation that leave the client.

    A diverged model may give losses that are not finite. They count as the worst loss, because the server waits for a
    report in any case.
    """
    losses = np.minimum(np.nan_to_num(samples.losses, nan=WORST_LOSS, posinf=WORST_LOSS), WORST_LOSS)
    return tk.EvaluationSums(
        samples=len(losses),
        loss_sum=float(losses.sum()),
        score_sum=float(np.nan_to_num(samples.scores).sum()),
        confidences=histogram(np.nan_to_num(samples.confidences)),
    )


def measure(forget: PerSample, holdout: PerSample | None, retained: tk.EvaluationSums | None) -> ModelMeasurement:
    """Returns sums over the samples to forget and the hold-out, and both attacks.

    The attacks are calibrated with the training sums of the retained clients.
    """
    if holdout is None:
        return ModelMeasurement(summed(forget))
    found: dict[str, Attack] = {}
    # If the retained clients reported too little for an attack, it is left out.
    with suppress(InvalidArgument):
        if retained is not None:
            found["yeom"] = yeom(forget.losses, holdout.losses, loss_sum=retained.loss_sum, samples=retained.samples)
            found["song"] = song(forget.confidences, holdout.confidences, members=list(retained.confidences))
    return ModelMeasurement(summed(forget), summed(holdout), **found)


def _attack(message: tk.MembershipAttack) -> Attack:
    return Attack(**{field.name: getattr(message, field.name) for field in fields(Attack)})
