"""Intervals and comparisons over targets and seeds, with the noise floor of retraining.

A cell is one target under one seed. Runs of one seed share the data and the original model, so the bootstrap draws seeds
first, and then targets within each drawn seed. Two methods are compared on the same cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import UsageError

# (target, seed)
Cell = tuple[str, int]
DRAWS = 2000
# The same draws for every table, so that a report is reproducible.
_SEED = 7
_LEVEL = 95.0
# With fewer cells even a sign test cannot reach 5 %, so no two methods are called different.
MIN_CELLS = 6


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % bootstrap interval. A single cell has no interval."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def upper(self) -> float:
        """The upper end; the mean where there is no interval."""
        return self.mean if self.high is None else self.high

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def text(self, digits: int = 1) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def bootstrap(values: Mapping[Cell, float], *, draws: int = DRAWS, seed: int = _SEED) -> Interval:
    """The mean over all cells with its percentile interval."""
    if not values:
        raise UsageError("an interval needs at least one run")
    mean = float(np.mean(list(values.values())))
    if len(values) < 2:
        return Interval(mean)
    by_seed: dict[int, list[float]] = {}
    for (_, run_seed), value in sorted(values.items()):
        by_seed.setdefault(run_seed, []).append(value)
    random = np.random.default_rng(seed)
    groups = [np.asarray(group) for group in by_seed.values()]
    chosen = random.integers(len(groups), size=(draws, len(groups)))
    sums, counts = np.zeros(draws), np.zeros(draws)
    for number, group in enumerate(groups):
        drawn: NDArray[np.float64] = group[random.integers(group.size, size=(draws, len(groups), group.size))].sum(2)
        here = chosen == number
        sums += (drawn * here).sum(1)
        counts += group.size * here.sum(1)
    tail = (100.0 - _LEVEL) / 2
    low, high = np.percentile(sums / counts, [tail, 100.0 - tail])
    return Interval(mean, float(low), float(high))


def paired(first: Mapping[Cell, float], second: Mapping[Cell, float]) -> Interval:
    """Mean of first - second over the cells that both have."""
    both = first.keys() & second.keys()
    if not both:
        raise UsageError("a paired comparison needs targets and seeds that both methods have")
    return bootstrap({cell: first[cell] - second[cell] for cell in both})


def differ(first: Mapping[Cell, float], second: Mapping[Cell, float], floor: float) -> bool:
    """Whether two methods differ by more than the noise floor, in an interval that excludes zero."""
    difference = paired(first, second)
    enough = len(first.keys() & second.keys()) >= MIN_CELLS
    return enough and difference.excludes_zero and abs(difference.mean) > floor


def best(distances: Mapping[str, Mapping[Cell, float]], floor: float | None) -> frozenset[str]:
    """The methods that are closest to Retrain: the closest one, and those that do not differ from it.

    Empty without a noise floor, and where no method differs from the closest one: nothing is ranked then.
    """
    if floor is None or len(distances) < 2:
        return frozenset()
    closest = min(distances, key=lambda name: float(np.mean(list(distances[name].values()))))
    like = {name for name, values in distances.items() if not differ(values, distances[closest], floor)}
    return frozenset(like) if len(like) < len(distances) else frozenset()
