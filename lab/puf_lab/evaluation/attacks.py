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

__all__ = [
    "RMIA_GAMMA",
    "SONG_LIMIT",
    "RelativeAttack",
    "ThresholdAttack",
    "rmia",
    "song",
    "song_threshold",
    "yeom",
    "yeom_members",
    "yeom_threshold",
]

# Samples per side that train the Song attack.
SONG_LIMIT = 10_000
# How many times likelier a sample must have become than a population point to dominate it.
RMIA_GAMMA = 1.0

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


@dataclass(frozen=True, slots=True)
class RelativeAttack:
    """`auc` is the chance that a forgotten sample looks more like a member than an unseen one: 0.5 is "like unseen data".

    `member_at_1`: share of the forgotten samples that look more like members than all but 1 % of the unseen ones: still
    known. `traced_at_1`: share that look less like members than all but 1 % of them: forgetting itself left a trace.
    """

    auc: float
    member_at_1: float
    traced_at_1: float


def rmia(
    forget: tuple[ArrayLike, ArrayLike],
    unseen: tuple[ArrayLike, ArrayLike],
    *,
    seed: int,
    gamma: float = RMIA_GAMMA,
    offline: float = 1.0,
) -> RelativeAttack:
    """RMIA (Zarifzadeh et al. 2024), offline: per sample, relative to a reference model and to a population.

    Each pair is the confidence in the truth by the attacked and by the reference model, which saw none of either: the
    retrained model, which an experiment has anyway. A sample's score is the share of population points z with

        p(x) / p_ref(x)  >=  gamma * p(z) / p_ref(z),    p_ref <- ((1 + a) p_ref + (1 - a)) / 2 with a = `offline`.

    Half of the unseen samples are the population, the other half the non-members. Against itself a model gets 0.5.
    """
    inside, outside = _ratio(forget, "forget", offline), _ratio(unseen, "unseen", offline)
    if outside.size < 2:
        raise UsageError("RMIA needs at least two unseen samples")
    order = np.random.default_rng(seed).permutation(outside.size)
    population = np.sort(gamma * outside[order[: outside.size // 2]])
    members = np.searchsorted(population, inside, "right") / population.size
    others = np.searchsorted(population, outside[order[outside.size // 2 :]], "right") / population.size
    return RelativeAttack(_auc(members, others), _caught(members, others), _caught(-members, -others))


def _ratio(pair: tuple[ArrayLike, ArrayLike], what: str, offline: float) -> Vector:
    attacked, reference = _vector(pair[0], f"{what} confidences"), _vector(pair[1], f"{what} reference confidences")
    if attacked.shape != reference.shape:
        raise UsageError(f"{what}: the attacked and the reference model must have seen the same samples")
    return np.asarray(attacked / np.maximum(((1 + offline) * reference + (1 - offline)) / 2, 1e-12))


def _auc(members: Vector, others: Vector) -> float:
    """Mann and Whitney: pairs in the right order, ties for a half."""
    ordered = np.sort(others)
    below, upto = np.searchsorted(ordered, members, "left"), np.searchsorted(ordered, members, "right")
    return float((below + upto).sum() / (2 * members.size * others.size))


def _caught(wanted: Vector, others: Vector) -> float:
    """Share of the wanted above a threshold that at most 1 % of the others pass."""
    allowed = math.floor(0.01 * others.size)
    threshold = np.sort(others)[::-1][allowed]
    return float(np.mean(wanted > threshold))


def _vector(values: ArrayLike, what: str) -> Vector:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise UsageError(f"{what}: one number per sample is needed, got an array of shape {vector.shape}")
    if np.isnan(vector).any():
        raise UsageError(f"{what}: {np.count_nonzero(np.isnan(vector))} of {vector.size} samples are not a number")
    return vector
