"""How well a model does, how far it is from a retrained one, and how long it needs to recover.

All accuracies are percentages. A comparison always pairs a model with the one retrained without the *same* target:
the spread that is reported is over targets, and runs that never recovered stay in the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from puf_common.errors import UsageError

__all__ = [
    "NEAR_POINTS",
    "Delta",
    "Recovery",
    "RecoverySummary",
    "accuracy",
    "delta_to_retrain",
    "percent",
    "recovery",
    "recovery_near",
    "summarise_recoveries",
]

# "Recovered" by first crossing is noisy; this close to the retrained model's accuracy is the steadier rule.
NEAR_POINTS = 1.0


def percent(scores: ArrayLike) -> float:
    """Mean of per-sample scores in [0, 1] (1 if correct, Dice, ...) as a percentage."""
    values = np.asarray(scores, dtype=np.float64)
    if values.size == 0:
        raise UsageError("there are no samples to measure")
    return float(100.0 * values.mean())


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Top-1 accuracy; predictions are classes, or one row of class scores per sample."""
    predicted, truth = np.asarray(predictions), np.asarray(labels)
    if predicted.ndim == truth.ndim + 1:
        predicted = predicted.argmax(axis=-1)
    if predicted.shape != truth.shape:
        raise UsageError(f"{predicted.shape} predictions do not fit {truth.shape} labels")
    return percent(predicted == truth)


@dataclass(frozen=True, slots=True)
class Delta:
    """Mean and sample standard deviation over targets of |m - m(retrained)|; `sd` is None for a single target.

    The mean of absolute differences can never be less than the difference of the means. Figures that say otherwise
    do not come from the same runs, and such a Delta cannot be made.
    """

    mean: float
    sd: float | None
    difference_of_means: float
    targets: int

    def __post_init__(self) -> None:
        if self.mean < abs(self.difference_of_means) - 1e-9:
            raise UsageError(
                f"mean |Δ| = {self.mean:g} is less than the difference of means {abs(self.difference_of_means):g}: "
                "the two do not come from the same runs"
            )

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.sd is None else f"{self.mean:.1f} ± {self.sd:.1f}"


def delta_to_retrain(values: ArrayLike, retrained: ArrayLike) -> Delta:
    """How far the model is from the retrained one; entry i of both belongs to target i."""
    ours, theirs = np.asarray(values, dtype=np.float64), np.asarray(retrained, dtype=np.float64)
    if ours.ndim != 1 or ours.shape != theirs.shape or ours.size == 0:
        raise UsageError("every target needs one value and one value of the model retrained without it")
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        raise UsageError("a value is missing or not finite; leave its target out of both lists and say so")
    distance = np.abs(ours - theirs)
    sd = float(distance.std(ddof=1)) if distance.size > 1 else None
    return Delta(float(distance.mean()), sd, float(ours.mean() - theirs.mean()), distance.size)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovery rounds used. Where the rule never held, `rounds` is how many were tried, a lower bound."""

    rounds: int
    recovered: bool

    def __str__(self) -> str:
        return f"{self.rounds}" if self.recovered else f"> {self.rounds}"


def recovery(accuracies: Sequence[float], target: float) -> Recovery:
    """First round with `accuracy >= target`; entry 0 is the model right after unlearning, entry r after r rounds."""
    if not accuracies:
        raise UsageError("recovery needs at least the accuracy right after unlearning")
    for rounds, value in enumerate(accuracies):
        if value >= target:
            return Recovery(rounds, True)
    return Recovery(len(accuracies) - 1, False)


def recovery_near(accuracies: Sequence[float], retrained: float, points: float = NEAR_POINTS) -> Recovery:
    """First round within `points` of the retrained model's accuracy."""
    return recovery(accuracies, retrained - points)


@dataclass(frozen=True, slots=True)
class RecoverySummary:
    """Over targets. With runs that did not recover the mean counts the rounds they were given: a lower bound."""

    mean: float
    sd: float | None
    recovered: int
    targets: int

    def __str__(self) -> str:
        text = f"{self.mean:.1f}" if self.sd is None else f"{self.mean:.1f} ± {self.sd:.1f}"
        return text if self.recovered == self.targets else f"≥ {text} ({self.recovered} of {self.targets} recovered)"


def summarise_recoveries(recoveries: Sequence[Recovery]) -> RecoverySummary:
    """Every run counts: leaving out those that never recovered would flatter the method."""
    if not recoveries:
        raise UsageError("there are no recoveries to summarise")
    rounds = np.array([r.rounds for r in recoveries], dtype=np.float64)
    sd = float(rounds.std(ddof=1)) if rounds.size > 1 else None
    return RecoverySummary(float(rounds.mean()), sd, sum(r.recovered for r in recoveries), rounds.size)
