"""Comparison with the retrained model: distance of a metric, and rounds until recovery.

All accuracies are percentages. Each model is paired with the model retrained without the same target. The reported
spread is over targets. Runs that did not recover stay in every mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from puf_common.errors import UsageError

# The first crossing of the retrained model's accuracy is noisy. This many points below it is a steadier rule.
NEAR_POINTS = 1.0


def percent(scores: ArrayLike) -> float:
    """Mean of per-sample scores in [0, 1] (1 if correct, Dice, ...) as a percentage."""
    values = np.asarray(scores, dtype=np.float64)
    if values.size == 0:
        raise UsageError("there are no samples to measure")
    return float(100.0 * values.mean())


@dataclass(frozen=True, slots=True)
class Mean:
    """Mean and sample standard deviation over targets and seeds. `sd` is None for a single value."""

    mean: float
    sd: float | None

    @classmethod
    def of(cls, values: ArrayLike) -> Mean:
        array = np.asarray(values, np.float64)
        return cls(float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else None)

    def text(self, digits: int = 1) -> str:
        return f"{self.mean:.{digits}f}" + ("" if self.sd is None else f" ± {self.sd:.{digits}f}")

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True, slots=True)
class Delta(Mean):
    """Mean and standard deviation over targets of |m - m(retrained)|.

    The mean of absolute differences is never less than the difference of the means. Figures that contradict this do not
    come from the same runs, so the constructor refuses them.
    """

    difference_of_means: float
    targets: int

    def __post_init__(self) -> None:
        if self.mean < abs(self.difference_of_means) - 1e-9:
            raise UsageError(
                f"mean |Δ| = {self.mean:g} is less than the difference of means {abs(self.difference_of_means):g}: "
                "the two do not come from the same runs"
            )


def delta_to_retrain(values: ArrayLike, retrained: ArrayLike) -> Delta:
    """Distance to the retrained models. Entry i of both lists belongs to target i."""
    ours, theirs = np.asarray(values, dtype=np.float64), np.asarray(retrained, dtype=np.float64)
    if ours.ndim != 1 or ours.shape != theirs.shape or ours.size == 0:
        raise UsageError("every target needs one value and one value of the model retrained without it")
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        raise UsageError("a value is missing or not finite; remove its target from both lists and report that")
    distance = Mean.of(np.abs(ours - theirs))
    return Delta(distance.mean, distance.sd, float(ours.mean() - theirs.mean()), ours.size)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovery rounds of one run. Without recovery, `rounds` is the number of rounds tried: a lower bound."""

    rounds: int
    recovered: bool

    def __str__(self) -> str:
        return f"{self.rounds}" if self.recovered else f"> {self.rounds}"


def recovery(accuracies: Sequence[float], target: float) -> Recovery:
    """First round with `accuracy >= target`. Entry 0 is the model right after unlearning, entry r after r rounds."""
    if not accuracies:
        raise UsageError("recovery needs at least the accuracy right after unlearning")
    for rounds, value in enumerate(accuracies):
        if value >= target:
            return Recovery(rounds, True)
    return Recovery(len(accuracies) - 1, False)


def recovery_near(accuracies: Sequence[float], retrained: float) -> Recovery:
    """First round within NEAR_POINTS of the retrained model's accuracy."""
    return recovery(accuracies, retrained - NEAR_POINTS)


@dataclass(frozen=True, slots=True)
class RecoverySummary(Mean):
    """Recovery rounds over targets. If some runs did not recover, the mean is a lower bound."""

    recovered: int
    targets: int

    def __str__(self) -> str:
        text = self.text()
        return text if self.recovered == self.targets else f"≥ {text} ({self.recovered} of {self.targets} recovered)"


def summarise_recoveries(recoveries: Sequence[Recovery]) -> RecoverySummary:
    """Summary of all runs. Runs that did not recover count: leaving them out would flatter the method."""
    if not recoveries:
        raise UsageError("there are no recoveries to summarise")
    rounds = Mean.of([r.rounds for r in recoveries])
    return RecoverySummary(rounds.mean, rounds.sd, sum(r.recovered for r in recoveries), len(recoveries))
