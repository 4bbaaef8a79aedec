"""Rank comparisons: how often a model is more confident about a forgotten sample than about an unseen one.

The figure is the Mann-Whitney statistic, the area under the ROC curve (AUC) of the attack that looks at the confidence in
the true label. 0.5 means that forgotten samples rank like unseen ones. Above 0.5 the model knows them better, below 0.5
it does worse on them. Every confidence counts, not only its side of a threshold.

The interval is Newcombe's method 5 (Statistics in Medicine 25, 2006). It needs the AUC and two counts, and it does not
collapse where all samples are in order. At 0.5 its variance is that of the Wilcoxon rank-sum test without ties. Ties make
the true variance smaller, so binned confidences give wider intervals than necessary, never narrower ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from puf_common.errors import InvalidArgument
from puf_common.receipts.evidence import BINS, bins, vector

# The AUC of samples that the model never saw.
UNSEEN = 0.5
# A table of more classes is not sent: it would not fit into a request.
MOST_CLASSES = 500
# Quantile of the normal distribution: an effect is found in 80 of 100 cases.
_Z_POWER = 0.8416212335729143


@dataclass(frozen=True, slots=True, kw_only=True)
class RankComparison:
    """Forgotten samples against unseen ones. Interval and smallest detectable distance follow from these figures."""

    auc: float
    forget_samples: int
    # For samples with weights: how many samples without weights would be as exact, rounded down.
    unseen_samples: int

    def __post_init__(self) -> None:
        if not 0.0 <= self.auc <= 1.0:
            raise InvalidArgument(f"a rank comparison is a number from 0 to 1, not {self.auc:g}")
        if min(self.forget_samples, self.unseen_samples) < 1:
            raise InvalidArgument("a rank comparison needs at least one sample on either side")

    @property
    def distance(self) -> float:
        """How far the forgotten samples are from unseen ones; negative if the model does worse on them."""
        return self.auc - UNSEEN

    def interval(self, z: float) -> tuple[float, float]:
        """The interval of the AUC whose ends are `z` standard errors away, each with the variance at that end."""
        return self._end(0.0, z), self._end(1.0, z)

    def excludes(self, auc: float, z: float) -> bool:
        """Whether this value lies outside the interval."""
        return (auc - self.auc) ** 2 > z * z * self._variance(auc)

    def detectable(self, z: float) -> float:
        """The smallest distance from 0.5 that a test with this `z` finds in 80 of 100 cases; at most 0.5."""
        return min(0.5, (z + _Z_POWER) * math.sqrt(self._variance(UNSEEN)))

    def _variance(self, auc: float) -> float:
        forget, unseen = self.forget_samples, self.unseen_samples
        spread = (forget + unseen) / 2 - 1
        return auc * (1 - auc) / (forget * unseen) * (1 + spread * ((1 - auc) / (2 - auc) + auc / (1 + auc)))

    def _end(self, limit: float, z: float) -> float:
        """The point between the AUC and the limit at which the distance equals `z` standard errors, by bisection."""
        inside, outside = self.auc, limit
        for _ in range(50):
            middle = (inside + outside) / 2
            if self.excludes(middle, z):
                outside = middle
            else:
                inside = middle
        return limit if self.auc == limit else inside


def change(before: RankComparison, after: RankComparison, z: float) -> tuple[float, float]:
    """The interval of `before` minus `after`, by Newcombe's combination of the two intervals.

    Both comparisons use the same samples. The interval treats them as independent. Samples that are hard for one model
    are hard for the other, so the true interval is narrower.
    """
    (b_low, b_high), (a_low, a_high) = before.interval(z), after.interval(z)
    moved = before.auc - after.auc
    return (
        moved - math.hypot(before.auc - b_low, a_high - after.auc),
        moved + math.hypot(b_high - before.auc, after.auc - a_low),
    )


def compare(forget_confidences: ArrayLike, unseen_confidences: ArrayLike) -> RankComparison:
    """All pairs of a forgotten and an unseen sample. A tie counts as a half."""
    forget = vector(forget_confidences, "forget confidences")
    unseen = np.sort(vector(unseen_confidences, "hold-out confidences"))
    below, upto = (np.searchsorted(unseen, forget, side) for side in ("left", "right"))
    pairs = int(below.sum()) + int(upto.sum())
    auc = pairs / (2 * forget.size * unseen.size)
    return RankComparison(auc=auc, forget_samples=forget.size, unseen_samples=unseen.size)


def class_histogram(confidences: ArrayLike, classes: ArrayLike) -> tuple[int, ...]:
    """Counts by class and bin; empty if there are more than MOST_CLASSES classes.

    Entry BINS * c + i counts the samples of class c in bin i. The last class has a sample.
    """
    place = BINS * _classes(classes) + bins(vector(confidences, "confidences"))
    count = int(place.max()) // BINS + 1
    return tuple(int(n) for n in np.bincount(place, minlength=BINS * count)) if count <= MOST_CLASSES else ()


def compare_by_class(
    forget_confidences: ArrayLike, forget_classes: ArrayLike, unseen: Sequence[int]
) -> RankComparison | None:
    """Pairs of a forgotten and an unseen sample of the same class; None if the two have no class in common.

    `unseen` has counts by class and bin, as from `class_histogram`. Every forgotten sample has the same weight, so the
    unseen samples get the label mix of the forgotten ones. Forgotten samples of classes without unseen samples are left out.
    """
    table = np.asarray(unseen, dtype=np.float64)
    if table.size == 0 or table.size % BINS or table.min() < 0:
        raise InvalidArgument(f"unseen samples are counts in {BINS} bins for each class")
    table = table.reshape(-1, BINS)
    binned, classes = bins(vector(forget_confidences, "forget confidences")), _classes(forget_classes)
    if binned.shape != classes.shape:
        raise InvalidArgument("every forgotten sample needs one confidence and one class")
    totals = table.sum(axis=1)
    known = classes < len(table)
    known[known] = totals[classes[known]] > 0
    binned, classes = binned[known], classes[known]
    if not binned.size:
        return None
    below = np.cumsum(table, axis=1) - table / 2
    auc = float(np.mean(below[classes, binned] / totals[classes]))
    # The variance of the stratified statistic at 0.5 is (1/n + a + b) / 12; the counts n and m without strata give
    # (1/n + 1/m + 1/(n m)) / 12.
    count = binned.size
    share = np.bincount(classes, minlength=len(table)) / count
    present = share > 0
    a = float(np.sum(share[present] ** 2 / totals[present]))
    b = float(np.sum(share[present] / totals[present])) / count
    as_exact_as = (count + 1) / (count * (a + b))
    # A quotient such as 19.999999999999996 is 20.
    return RankComparison(
        auc=min(1.0, max(0.0, auc)), forget_samples=count, unseen_samples=max(1, math.floor(as_exact_as + 1e-9))
    )


def _classes(classes: ArrayLike) -> NDArray[np.intp]:
    found = np.asarray(classes)
    if found.ndim != 1 or found.size == 0 or not np.issubdtype(found.dtype, np.integer) or found.min() < 0:
        raise InvalidArgument("classes: one whole number of at least 0 per sample is needed")
    return found.astype(np.intp)
