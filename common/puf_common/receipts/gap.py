"""How much better a model knows some samples than unseen samples with the same mix of labels.

    gap = mean p(y|x) over the forget data - sum over classes c of pi(c) * S_c / N_c

S_c and N_c are sum and count of p(y|x) over hold-out samples of class c, and pi is the label mix of the forget data. A task
without classes has one class. The gap of one model says little, because samples differ in difficulty. The fraction of the
gap that is left after unlearning is a better measure. It is no proof of erasure: attacks may still find what the mean hides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from puf_common.errors import InvalidArgument
from puf_common.receipts.evidence import BINS
from puf_common.receipts.ranks import class_histogram

# Fewer hold-out samples allow no statement about unseen data.
FEWEST = 45
# More classes are counted as one. A report must fit into one request.
MOST_CLASSES = 500
_UNITS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTable:
    """p(y|x) of hold-out samples by class: counts by class and bin, sums, and sums of squares.

    Sums are multiples of 2^-20, so that they add without a rounding error, in any order.
    """

    bins: tuple[int, ...]
    sums: tuple[float, ...]
    squares: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", tuple(_exact(value) for value in self.sums))
        object.__setattr__(self, "squares", tuple(_exact(value) for value in self.squares))
        if not 1 <= len(self.sums) == len(self.squares) <= MOST_CLASSES or len(self.bins) != BINS * len(self.sums):
            raise InvalidArgument(f"a class table has 1 to {MOST_CLASSES} classes, each with {BINS} bins and two sums")
        if min(self.bins) < 0:
            raise InvalidArgument("a class table counts samples")
        for count, total, square in zip(self.counts, self.sums, self.squares, strict=True):
            # float32 probabilities can exceed 1 by a rounding error.
            if not 0 <= total <= count * 1.001 or not 0 <= square <= count * 1.001:
                raise InvalidArgument("a class table holds sums of probabilities, between 0 and the number of samples")

    def __add__(self, other: ClassTable) -> ClassTable:
        return ClassTable(
            bins=tuple(a + b for a, b in zip(self.bins, other.bins, strict=True)),
            sums=tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            squares=tuple(a + b for a, b in zip(self.squares, other.squares, strict=True)),
        )

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(sum(self.bins[begin : begin + BINS]) for begin in range(0, len(self.bins), BINS))

    @property
    def classes(self) -> int:
        return len(self.sums)

    @property
    def samples(self) -> int:
        return sum(self.bins)

    @property
    def mean(self) -> float:
        """The mean of p(y|x) over all samples; 0 without a sample."""
        return math.fsum(self.sums) / self.samples if self.samples else 0.0


def table(confidences: ArrayLike, labels: ArrayLike, classes: int) -> ClassTable:
    """The table of these samples. With too many classes they count as one class."""
    values = np.clip(np.nan_to_num(np.asarray(confidences, np.float64)), 0.0, 1.0)
    size = classes if classes <= MOST_CLASSES else 1
    kinds = as_classes(labels, size)
    return ClassTable(
        bins=class_histogram(values, kinds, size),
        sums=tuple(float(s) for s in np.bincount(kinds, values, minlength=size)),
        squares=tuple(float(s) for s in np.bincount(kinds, values * values, minlength=size)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The gap of one model, and its standard error."""

    value: float
    error: float

    def __post_init__(self) -> None:
        if not (-1.0 <= self.value <= 1.0 and 0.0 <= self.error <= 1.0):
            raise InvalidArgument("a gap lies between -1 and 1, with a standard error between 0 and 1")

    @property
    def measurable(self) -> bool:
        """Whether it is above zero by more than two standard errors."""
        return self.value > 2 * self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class DoseReport:
    """The strength that a target chose for one round of adaptive strength, and the gap that it measured before."""

    kappa: float
    gap: Gap
    # Whether the dose only keeps the data away: the gap asks for no more than one round may lower.
    hold: bool = False


def gap(confidences: ArrayLike, labels: ArrayLike, unseen: ClassTable) -> Gap | None:
    """The gap of the forget data to these hold-outs; None if the hold-outs have too few samples.

    Classes that the hold-outs lack are left out on both sides.
    """
    values = np.clip(np.nan_to_num(np.asarray(confidences, np.float64)), 0.0, 1.0)
    counts = np.asarray(unseen.counts, np.float64)
    kinds = as_classes(labels, unseen.classes)
    known = counts[kinds] > 0
    if unseen.samples < FEWEST or not known.any():
        return None
    values, kinds = values[known], kinds[known]
    mix = np.bincount(kinds, minlength=counts.size) / values.size
    used = mix > 0
    n, sums, squares, weight = counts[used], np.asarray(unseen.sums)[used], np.asarray(unseen.squares)[used], mix[used]
    means = sums / n
    # A class with one sample has no variance of its own: all classes share theirs.
    within = max(0.0, float((squares - n * means**2).sum())) / max(1.0, float(n.sum()) - n.size)
    error = math.sqrt(float(values.var()) / values.size + within * float((weight**2 / n).sum()))
    return Gap(value=float(values.mean() - (weight * means).sum()), error=min(1.0, error))


def fraction_left(before: Gap | None, after: Gap | None) -> Gap | None:
    """phi = gap after / gap before with its standard error, as a fraction; None if the gap before is not measurable.

    The value is limited to [-1, 1]: beyond, the model knows the data better than before, or much less than unseen data.
    """
    if before is None or after is None or not before.measurable:
        return None
    phi = after.value / before.value
    error = math.hypot(after.error, phi * before.error) / before.value
    return Gap(value=max(-1.0, min(1.0, phi)), error=min(1.0, error))


def _exact(value: float) -> float:
    units = value * _UNITS
    return round(units) / _UNITS if math.isfinite(units) else value


def left_in_words(left: float, error: float) -> str:
    """phi as a sentence for people."""
    return (
        f"Of what the model knew of this data beyond unseen data, {100 * left:.0f} % is left (standard error "
        f"{100 * error:.0f} points). This is a mean, not a proof."
    )


def as_classes(labels: ArrayLike, classes: int) -> NDArray[np.intp]:
    """The class of every sample in a table with this number of classes."""
    kinds = np.asarray(labels).astype(np.intp)
    if classes == 1:
        return np.zeros_like(kinds)
    if kinds.ndim != 1 or (kinds.size and not 0 <= int(kinds.min()) <= int(kinds.max()) < classes):
        raise InvalidArgument(f"labels must be one class number below {classes} for each sample")
    return kinds
