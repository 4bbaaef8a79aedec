"""Membership inference: how much of the forgotten data an attacker still takes for training data, in per cent.

Both attacks are calibrated without the forget data. Their level depends on the data's mix of classes, so a figure means
something only beside that of the model retrained without the same target.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from puf_common.errors import UsageError

__all__ = ["SONG_LIMIT", "ThresholdAttack", "song", "song_threshold", "yeom", "yeom_members", "yeom_threshold"]

# Samples per side that train the Song attack.
SONG_LIMIT = 10_000

Vector = NDArray[np.float64]


def yeom_threshold(sums: Iterable[tuple[float, int]]) -> float:
    """Mean loss over the retained training data from each retained client's (sum of losses, samples)."""
    parts = list(sums)
    samples = sum(count for _, count in parts)
    if samples <= 0:
        raise UsageError("the Yeom attack needs losses of retained training data")
    mean = math.fsum(total for total, _ in parts) / samples
    if not math.isfinite(mean):
        raise UsageError("the mean loss over the retained training data is not finite; the model has diverged")
    return mean


def yeom_members(losses: ArrayLike, threshold: float) -> int:
    """How many samples are taken for members: those whose loss is at most the threshold."""
    return int(np.count_nonzero(_vector(losses, "losses") <= threshold))


def yeom(retained_losses: ArrayLike, forget_losses: ArrayLike) -> float:
    """Yeom et al. 2018 on losses without augmentation; the forget data take no part in the threshold."""
    retained, forget = _vector(retained_losses, "retained losses"), _vector(forget_losses, "forget losses")
    threshold = yeom_threshold([(math.fsum(retained), retained.size)])
    return 100.0 * yeom_members(forget, threshold) / forget.size


def song(members: ArrayLike, non_members: ArrayLike, forget: ArrayLike, *, seed: int, limit: int = SONG_LIMIT) -> float:
    """Song & Mittal as the paper uses it: an RBF support vector machine on the confidence in the true class.

    `members` are retained training samples, `non_members` test samples. Both sides are cut by the seed to the same size,
    for the machine would otherwise lean to the larger one; neither their order nor that of arrival matters.
    """
    from sklearn.svm import SVC

    inside, outside = _vector(members, "member confidences"), _vector(non_members, "non-member confidences")
    wanted = _vector(forget, "forget confidences")
    size = min(inside.size, outside.size, limit)
    random = np.random.default_rng(seed)
    sample = [np.sort(random.choice(np.sort(side), size, replace=False)) for side in (inside, outside)]
    machine = SVC(kernel="rbf", C=3, gamma="auto")
    machine.fit(np.concatenate(sample)[:, None], np.repeat([1, 0], size))
    return float(100.0 * np.mean(machine.predict(wanted[:, None]) == 1))


@dataclass(frozen=True, slots=True)
class ThresholdAttack:
    """`members`: per cent of the forget data at or above the threshold."""

    threshold: float
    balanced_accuracy: float
    members: float


def song_threshold(members: ArrayLike, non_members: ArrayLike, forget: ArrayLike) -> ThresholdAttack:
    """One threshold on the confidence, that of the best balanced accuracy: transparent where the machine is not.

    Candidates are the observed values, from the highest down, and the first of the best wins: of equally good
    thresholds the one that calls the fewest samples members, whatever the order of the data.
    """
    inside = np.sort(_vector(members, "member confidences"))
    outside = np.sort(_vector(non_members, "non-member confidences"))
    wanted = _vector(forget, "forget confidences")
    candidates = np.unique(np.concatenate([inside, outside]))[::-1]
    hits = inside.size - np.searchsorted(inside, candidates, "left")
    rejections = np.searchsorted(outside, candidates, "left")
    balanced = (hits / inside.size + rejections / outside.size) / 2
    best = int(np.argmax(balanced))
    threshold = float(candidates[best])
    return ThresholdAttack(threshold, float(balanced[best]), float(100.0 * np.mean(wanted >= threshold)))


def _vector(values: ArrayLike, what: str) -> Vector:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise UsageError(f"{what}: one number per sample is needed, got an array of shape {vector.shape}")
    if np.isnan(vector).any():
        raise UsageError(f"{what}: {np.count_nonzero(np.isnan(vector))} of {vector.size} samples are not a number")
    return vector
