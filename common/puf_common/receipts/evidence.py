"""The target's evidence about a model: membership attacks on its own data, with intervals and a finding.

An attack decides for every sample whether it looks like training data, a "member". The forgotten samples should look
like samples that the model never saw. The same attack therefore runs on the target's hold-out data, and the two shares
are compared. More members among the forgotten samples: the model remembers them. Fewer: their absence shows. Both
attacks are calibrated with sums over the retained clients' training data, never with the forgotten samples.

A finding is about one model. The verdict is about the request: it compares the models before and after (see `verdict`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from puf_common.errors import InvalidArgument

# On every receipt, for all figures.
STATEMENT = "approximate, not a proof of erasure"
# Confidences are sent as counts in this many equal bins of [0, 1].
BINS = 20
# Fewer samples on either side allow no verdict.
FEWEST = 10
# Shares, or ranks, that differ by less are called alike, for any number of samples.
MARGIN = 0.05
# If the interval of the difference reaches further than this on either side, there is no verdict either.
WIDEST = 0.25

# Normal quantiles of two-sided intervals.
Z90 = 1.6448536269514722
Z95 = 1.959963984540054
Z975 = 2.241402727604947
Z9875 = 2.497705474412412


class Verdict(StrEnum):
    """The verdict on a request. The terminal, the receipt, its page, the demo and the metrics use these words."""

    FORGOTTEN = "forgotten"
    STILL_KNOWN = "still known"
    NOTHING_CHANGED = "nothing measurable changed"
    TOO_FEW = "too few samples to tell"


class Finding(StrEnum):
    """Whether one model treats the forgotten data like unseen data. Receipts of version 0.1 have it as their verdict."""

    LIKE_UNSEEN = "like unseen data"
    NOT_LIKE_UNSEEN = "not like unseen data"
    TOO_FEW = "too few samples"


def wilson(successes: float, samples: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a share, by default at 95 %. It is meaningful for no, all and few successes."""
    if samples < 1 or not 0 <= successes <= samples:
        raise InvalidArgument(f"no interval for {successes:g} of {samples} samples")
    share, square = successes / samples, z * z
    centre = (share + square / (2 * samples)) / (1 + square / samples)
    reach = z / (1 + square / samples) * math.sqrt(share * (1 - share) / samples + square / (4 * samples * samples))
    # At the ends the interval touches 0 or 1 exactly, without a rounding error.
    low = 0.0 if successes == 0 else max(0.0, centre - reach)
    high = 1.0 if successes == samples else min(1.0, centre + reach)
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """How many samples one attack takes for members. Shares, intervals and the verdict follow from the counts."""

    threshold: float
    forget_members: int
    forget_samples: int
    holdout_members: int
    holdout_samples: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise InvalidArgument("an attack's threshold must be finite")
        for members, samples in (
            (self.forget_members, self.forget_samples),
            (self.holdout_members, self.holdout_samples),
        ):
            if samples < 1 or not 0 <= members <= samples:
                raise InvalidArgument(f"an attack cannot take {members} of {samples} samples for members")

    @property
    def forget_share(self) -> float:
        return self.forget_members / self.forget_samples

    @property
    def holdout_share(self) -> float:
        return self.holdout_members / self.holdout_samples

    def difference(self, z: float = Z975) -> tuple[float, float]:
        """Newcombe's interval of the difference: share of members in the forget data minus that in the hold-out."""
        f, h = self.forget_share, self.holdout_share
        f_low, f_high = wilson(self.forget_members, self.forget_samples, z)
        h_low, h_high = wilson(self.holdout_members, self.holdout_samples, z)
        return f - h - math.hypot(f - f_low, h_high - h), f - h + math.hypot(f_high - f, h - h_low)

    def finding(self, z: float = Z975) -> Finding:
        """What this attack says of the model. With 97.5 % for each of two attacks, both together are wrong in 5 %."""
        distance = self.forget_share - self.holdout_share
        low, high = self.difference(z)
        if min(self.forget_samples, self.holdout_samples) < FEWEST:
            return Finding.TOO_FEW
        if abs(distance) > MARGIN and (low > 0 or high < 0):
            return Finding.NOT_LIKE_UNSEEN
        if max(distance - low, high - distance) > WIDEST:
            return Finding.TOO_FEW
        return Finding.LIKE_UNSEEN


def worst(findings: Iterable[Finding]) -> Finding | None:
    """The finding that allows the least; None if there is none."""
    found = set(findings)
    for finding in (Finding.NOT_LIKE_UNSEEN, Finding.TOO_FEW, Finding.LIKE_UNSEEN):
        if finding in found:
            return finding
    return None


def histogram(confidences: ArrayLike) -> tuple[int, ...]:
    """Counts in BINS equal bins of [0, 1]. A bin includes its lower edge, the last bin also 1."""
    counts = np.bincount(bins(vector(confidences, "confidences")), minlength=BINS)
    return tuple(int(count) for count in counts)


def yeom(forget_losses: ArrayLike, holdout_losses: ArrayLike, *, loss_sum: float, samples: int) -> Attack:
    """The attack of Yeom et al. 2018: a member's loss is at most the mean loss of the retained training data."""
    if samples < 1 or not math.isfinite(loss_sum):
        raise InvalidArgument("the Yeom attack needs losses of retained training data")
    threshold = loss_sum / samples
    forget, holdout = vector(forget_losses, "forget losses"), vector(holdout_losses, "hold-out losses")
    return Attack(
        threshold=threshold,
        forget_members=int(np.count_nonzero(forget <= threshold)),
        forget_samples=forget.size,
        holdout_members=int(np.count_nonzero(holdout <= threshold)),
        holdout_samples=holdout.size,
    )


def song(forget_confidences: ArrayLike, holdout_confidences: ArrayLike, *, members: Sequence[int]) -> Attack:
    """The attack after Song & Mittal: the threshold on the confidence that best separates members from non-members.

    `members` counts the retained clients' training samples by bins. Non-members are the target's hold-out. Candidates are the
    lower edges of bins, from the highest down. The first with the best balanced accuracy is used, as in the lab's exact form.
    """
    if len(members) != BINS or min(members) < 0 or sum(members) < 1:
        raise InvalidArgument(f"the Song attack needs retained training samples in {BINS} bins")
    forget, holdout = (
        bins(vector(values, what))
        for values, what in ((forget_confidences, "forget confidences"), (holdout_confidences, "hold-out confidences"))
    )
    inside, outside = np.asarray(members, dtype=np.float64), np.bincount(holdout, minlength=BINS)
    hits = np.cumsum(inside[::-1]) / inside.sum()
    rejections = 1 - np.cumsum(outside[::-1]) / outside.sum()
    edge = BINS - 1 - int(np.argmax(np.round(hits + rejections, 12)))
    return Attack(
        threshold=edge / BINS,
        forget_members=int(np.count_nonzero(forget >= edge)),
        forget_samples=forget.size,
        holdout_members=int(np.count_nonzero(holdout >= edge)),
        holdout_samples=holdout.size,
    )


def bins(confidences: NDArray[np.float64]) -> NDArray[np.intp]:
    """The bin of every confidence. A float32 softmax can leave [0, 1] by a rounding error."""
    return np.clip(np.floor(confidences * BINS), 0, BINS - 1).astype(np.intp)


def vector(values: ArrayLike, what: str) -> NDArray[np.float64]:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise InvalidArgument(f"{what}: one number per sample is needed, got an array of shape {vector.shape}")
    if np.isnan(vector).any():
        raise InvalidArgument(f"{what}: {np.count_nonzero(np.isnan(vector))} of {vector.size} samples are not a number")
    return vector
