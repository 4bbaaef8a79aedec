"""Membership inference: the share of the forgotten data that an attacker takes for training data, in per cent.

The Song and Yeom attacks are calibrated without the forget data. Their level depends on the mix of classes in the data.
Compare a figure only with that of the model retrained without the same target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from puf_common.errors import UsageError

# Samples per side that train the Song attack.
SONG_LIMIT = 10_000

Vector = NDArray[np.float64]


def yeom(retained_losses: ArrayLike, forget_losses: ArrayLike) -> float:
    """Yeom et al. 2018: share of the forget samples whose loss is at most the mean loss over the retained data.

    Losses are without augmentation. The forget data take no part in the threshold.
    """
    retained, forget = _vector(retained_losses, "retained losses"), _vector(forget_losses, "forget losses")
    threshold = math.fsum(retained) / retained.size
    if not math.isfinite(threshold):
        raise UsageError("the mean loss over the retained training data is not finite; the model has diverged")
    return 100.0 * int(np.count_nonzero(forget <= threshold)) / forget.size


def song(members: ArrayLike, non_members: ArrayLike, forget: ArrayLike, *, seed: int, limit: int = SONG_LIMIT) -> float:
    """Song & Mittal as in the paper: an RBF support vector machine on the confidence in the true class.

    `members` are retained training samples, `non_members` are test samples. Both sides are cut to the same size by the
    seed, because the machine would otherwise favour the larger side. The order of the samples does not matter.
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
class RelativeAttack:
    """`auc`: chance that a forgotten sample looks more like a member than an unseen one. 0.5 is "like unseen data".

    `member_at_1`: share of the forgotten samples that look more like members than all but 1 % of the unseen samples:
    the true positive rate at a false positive rate of 1 %. `member_at_01` is the same at 0.1 %.
    `traced_at_1`: share that look less like members than all but 1 % of them. Forgetting itself left this trace.
    """

    auc: float
    member_at_1: float
    member_at_01: float
    traced_at_1: float


def rmia(forget: tuple[ArrayLike, ArrayLike], unseen: tuple[ArrayLike, ArrayLike]) -> RelativeAttack:
    """RMIA (Zarifzadeh et al. 2024), offline: per sample, relative to reference models.

    Each pair has the confidences of the attacked model and of the reference models, which saw neither set. The references
    were retrained without the target, with other seeds. The score of a sample x in their paper is the share of population
    points z with

        p(x) / p_ref(x)  >=  gamma * p(z) / p_ref(z),    with gamma = 1 and p_ref uncorrected (a = 1 in their paper).

    All samples share one population, so this share grows with the ratio p(x) / p_ref(x). The ratio itself gives the same
    order without the ties at shares of 0 and 1, and every unseen sample can be a non-member. Against itself a model gets 0.5.
    """
    members, others = _ratio(forget, "forget"), _ratio(unseen, "unseen")
    return RelativeAttack(
        auc=_auc(members, others),
        member_at_1=_caught(members, others, 0.01),
        member_at_01=_caught(members, others, 0.001),
        traced_at_1=_caught(-members, -others, 0.01),
    )


def _ratio(pair: tuple[ArrayLike, ArrayLike], what: str) -> Vector:
    attacked, reference = _vector(pair[0], f"{what} confidences"), _vector(pair[1], f"{what} reference confidences")
    if attacked.shape != reference.shape:
        raise UsageError(f"{what}: the attacked and the reference model must be given the same samples")
    return np.asarray(attacked / np.maximum(reference, 1e-12))


def _auc(members: Vector, others: Vector) -> float:
    """Mann-Whitney statistic: share of the pairs in the right order, with ties counted as a half."""
    ordered = np.sort(others)
    below, upto = np.searchsorted(ordered, members, "left"), np.searchsorted(ordered, members, "right")
    return float((below + upto).sum() / (2 * members.size * others.size))


def _caught(wanted: Vector, others: Vector, rate: float) -> float:
    """Share of `wanted` above a threshold that at most this share of the others pass."""
    passing = math.floor(rate * others.size)
    threshold = np.sort(others)[::-1][passing]
    return float(np.mean(wanted > threshold))


def _vector(values: ArrayLike, what: str) -> Vector:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise UsageError(f"{what}: one number per sample is needed, got an array of shape {vector.shape}")
    if np.isnan(vector).any():
        raise UsageError(f"{what}: {np.count_nonzero(np.isnan(vector))} of {vector.size} samples are not a number")
    return vector
