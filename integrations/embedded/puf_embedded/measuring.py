"""What a node measures of a model on its own data: sums, ranks and gap, and the strength of a dose.

The same rules as in PUF's client. Values travel as JSON, because other frameworks may have another version of protobuf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from pydantic import TypeAdapter

from puf_client.routines.dosing import DoseOptions, own_share, searched
from puf_client.routines.per_sample import PerSample, unseen
from puf_common.errors import UsageError
from puf_common.receipts.evidence import histogram
from puf_common.receipts.gap import ClassTable, DoseReport, as_classes, gap
from puf_common.receipts.ranks import compare, compare_by_class
from puf_embedded.arithmetic import Arrays, scaled
from puf_server.core.state.measurements import Measurement, Sums

SUMS = TypeAdapter(Sums)
MEASUREMENT = TypeAdapter(Measurement)
TABLE = TypeAdapter(ClassTable)
DOSE = TypeAdapter(DoseReport)

# Upper bound of the loss that one sample contributes.
_WORST_LOSS = 1e6


def per_sample(confidences: object, labels: object, correct: object, classes: int) -> PerSample:
    """The values of samples, from the probability of the true label, the label, and whether the answer is correct."""
    known = np.clip(np.nan_to_num(np.asarray(confidences, np.float64)), 0.0, 1.0)
    kinds, right = np.asarray(labels, np.int64), np.asarray(correct, np.float64)
    if not known.shape == kinds.shape == right.shape or known.ndim != 1 or not known.size:
        raise UsageError("a measurement needs one confidence, one label and one answer for each of at least one sample")
    losses = np.minimum(-np.log(np.maximum(known, 1e-300)), _WORST_LOSS)
    return PerSample(losses=losses, scores=right, confidences=known, labels=kinds, classes=classes)


def summed(samples: PerSample, *, by_class: bool = False) -> Sums:
    """Sums over the samples: the only values of an evaluation that leave the node."""
    return Sums(
        samples=len(samples.losses),
        loss_sum=float(samples.losses.sum()),
        score_sum=float(samples.scores.sum()),
        confidences=histogram(samples.confidences),
        classes=samples.by_class if by_class else None,
    )


def measured(forget: PerSample, holdout: PerSample | None, others: ClassTable | None) -> Measurement:
    """Sums, ranks and gap of the samples to forget against the own hold-out and the other nodes' hold-outs."""
    pool = (
        compare_by_class(forget.confidences, as_classes(forget.labels, others.classes), others.bins) if others else None
    )
    return Measurement(
        forget=summed(forget),
        holdout=summed(holdout) if holdout else None,
        gap=gap(forget.confidences, forget.labels, unseen(others, holdout)) if others or holdout else None,
        own=compare(forget.confidences, holdout.confidences) if holdout else None,
        pool=pool,
    )


@dataclass(frozen=True)
class NodeData:
    """The node's samples as a model sees them: `train` and `holdout` give the values of a model."""

    train: Callable[[Arrays], PerSample]
    holdout: Callable[[Arrays], PerSample | None]


def chosen_dose(
    base: Arrays,
    train: Callable[[], Arrays],
    data: NodeData,
    options: DoseOptions,
    others: ClassTable,
    buffers: frozenset[str],
) -> tuple[Arrays, DoseReport]:
    """The trained model and the strength with which its update is negated. A skipped dose does not train."""
    before, own = data.train(base), data.holdout(base)
    found = gap(before.confidences, before.labels, unseen(others, own))
    if found is None:
        raise UsageError("a dose needs more hold-out samples to compare with: no dose without a measurement")
    need = options.need(found, own_share(before, own, others))
    hold = need <= options.largest_fall
    if options.skip(found):
        return base, DoseReport(kappa=0.0, gap=found, hold=hold)
    trained = train()
    positions = np.asarray(searched(before.confidences.size))
    level = float(before.confidences[positions].mean())

    def fall(kappa: float) -> float:
        now = data.train(scaled(base, trained, -kappa, buffers))
        return level - float(now.confidences[positions].mean())

    kappa = options.smallest(min(need, options.largest_fall, level / 2), fall)
    return trained, DoseReport(kappa=kappa, gap=found, hold=hold)
