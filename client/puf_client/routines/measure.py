"""What a client reports about a model: sums for the federation; ranks and membership attacks on its own data."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, fields

import numpy as np

from puf_client.routines.per_sample import PerSample, unseen
from puf_common.errors import InvalidArgument
from puf_common.receipts.evidence import Attack, histogram, song, yeom
from puf_common.receipts.gap import ClassTable, Gap, as_classes, gap
from puf_common.receipts.ranks import RankComparison, compare, compare_by_class
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

# Upper bound of the loss that one sample contributes.
WORST_LOSS = 1e6


@dataclass(frozen=True)
class ModelMeasurement:
    """What a client reports about one model; None where it could not be measured."""

    forget: tk.EvaluationSums | None
    holdout: tk.EvaluationSums | None = None
    yeom: Attack | None = None
    song: Attack | None = None
    # Ranks of the samples to forget against the own hold-out, and by class against those of other clients.
    own: RankComparison | None = None
    pool: RankComparison | None = None
    gap: Gap | None = None

    @classmethod
    def from_pb(cls, message: tk.Measurement) -> ModelMeasurement:
        return cls(
            message.forget,
            message.holdout if message.HasField("holdout") else None,
            _attack(message.yeom) if message.HasField("yeom") else None,
            _attack(message.song) if message.HasField("song") else None,
            _ranks(message.own) if message.HasField("own") else None,
            _ranks(message.pool) if message.HasField("pool") else None,
            Gap(value=message.gap.value, error=message.gap.error) if message.HasField("gap") else None,
        )

    def request(self, ticket_id: str, version: int) -> pb.ReportMeasurementRequest:
        return pb.ReportMeasurementRequest(
            ticket_id=ticket_id,
            version=version,
            forget=self.forget,
            holdout=self.holdout,
            yeom=tk.MembershipAttack(**asdict(self.yeom)) if self.yeom else None,
            song=tk.MembershipAttack(**asdict(self.song)) if self.song else None,
            own=tk.RankComparison(**asdict(self.own)) if self.own else None,
            pool=tk.RankComparison(**asdict(self.pool)) if self.pool else None,
            gap=tk.Gap(**asdict(self.gap)) if self.gap else None,
        )


def summed(samples: PerSample, *, by_class: bool = False) -> tk.EvaluationSums:
    """Returns sums and binned confidences: the only values of an evaluation that leave the client.

    Confidences by class are for hold-out samples only. A target compares its data with those of all clients together.
    A diverged model may give losses that are not finite. They count as the worst loss, because the server waits for a
    report in any case.
    """
    losses = np.minimum(np.nan_to_num(samples.losses, nan=WORST_LOSS, posinf=WORST_LOSS), WORST_LOSS)
    return tk.EvaluationSums(
        samples=len(losses),
        loss_sum=float(losses.sum()),
        score_sum=float(np.nan_to_num(samples.scores).sum()),
        confidences=histogram(np.nan_to_num(samples.confidences)),
        classes=tk.ClassTable(**asdict(samples.by_class)) if by_class else None,
    )


def measure(forget: PerSample, holdout: PerSample | None, retained: tk.RetainedSums | None) -> ModelMeasurement:
    """Returns sums over the samples to forget and the hold-out, ranks and gap to unseen samples, and both attacks.

    The attacks are calibrated with the training sums of the retained clients. Unseen samples are the client's own hold-out
    and those of the retained clients. The labels of the samples to forget stay here.
    """
    forgotten = np.nan_to_num(forget.confidences)
    others = class_table(retained.holdout) if retained is not None and retained.HasField("holdout") else None
    pool = compare_by_class(forgotten, as_classes(forget.labels, others.classes), others.bins) if others else None
    found = gap(forgotten, forget.labels, unseen(others, holdout)) if others or holdout else None
    if holdout is None:
        return ModelMeasurement(summed(forget), pool=pool, gap=found)
    attacks: dict[str, Attack] = {}
    # If the retained clients reported too little for an attack, it is left out.
    with suppress(InvalidArgument):
        if retained is not None and retained.HasField("training"):
            sums = retained.training
            attacks["yeom"] = yeom(forget.losses, holdout.losses, loss_sum=sums.loss_sum, samples=sums.samples)
            attacks["song"] = song(forget.confidences, holdout.confidences, members=list(sums.confidences))
    own = compare(forgotten, np.nan_to_num(holdout.confidences))
    return ModelMeasurement(summed(forget), summed(holdout), **attacks, own=own, pool=pool, gap=found)


def class_table(message: tk.ClassTable) -> ClassTable:
    return ClassTable(bins=tuple(message.bins), sums=tuple(message.sums), squares=tuple(message.squares))


def _ranks(message: tk.RankComparison) -> RankComparison:
    return RankComparison(**{field.name: getattr(message, field.name) for field in fields(RankComparison)})


def _attack(message: tk.MembershipAttack) -> Attack:
    return Attack(**{field.name: getattr(message, field.name) for field in fields(Attack)})
