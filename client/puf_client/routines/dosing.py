"""The choice of a dose: how much p(y|x) has to fall, and the smallest strength that does it. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from puf_client.routines.per_sample import PerSample
from puf_common.errors import UsageError
from puf_common.receipts.gap import ClassTable, Gap, as_classes

# The search runs the model up to twenty times. More samples would not make the mean more exact than needed.
_SEARCH_SAMPLES = 2000


def searched(samples: int) -> range:
    """Positions of the samples that the search uses."""
    return range(0, samples, max(1, -(-samples // _SEARCH_SAMPLES)))


@dataclass(frozen=True)
class DoseOptions:
    """The server's rule in numbers: see `puf_server.core.methods.puf_auto`."""

    min_kappa: float
    max_kappa: float
    growth: float
    margin: float
    largest_fall: float
    damage: float = 0.0
    share: float = 0.0
    part: float = 1.0
    little: float = 0.1
    much: float = 1 / 3
    first_gap: float = float("nan")
    """The gap before the first dose; not a number in the first dose."""
    may_skip: bool = False

    def __post_init__(self) -> None:
        # The search multiplies by `growth` until it reaches `max_kappa`.
        if not (0 < self.min_kappa <= self.max_kappa < math.inf and 1.01 <= self.growth < math.inf):
            raise UsageError(
                f"a dose needs 0 < min_kappa <= max_kappa and a growth of at least 1.01, not {self.min_kappa:g}, "
                f"{self.max_kappa:g} and {self.growth:g}"
            )

    def need(self, now: Gap, own_share: float) -> float:
        """How much p(y|x) on the samples has to fall. `own_share` is the client's share of its own classes."""
        over = self.margin * now.value if np.isnan(self.first_gap) else min(self.margin * self.first_gap, now.error)
        leaving = max(self.share, self.part * own_share)
        delta = min(1.0, max(0.0, (self.much - leaving) / (self.much - self.little)))
        return now.value - delta * self.damage + over

    def skip(self, now: Gap) -> bool:
        """Whether the model already knows the samples clearly less than unseen ones."""
        return self.may_skip and now.value < -now.error

    def smallest(self, wanted: float, fall: Callable[[float], float]) -> float:
        """The smallest kappa of the grid with at least the wanted fall; the largest one if none has it."""
        kappa = self.min_kappa
        while kappa < self.max_kappa and not fall(kappa) >= wanted:
            kappa = min(self.max_kappa, kappa * self.growth)
        return kappa


def own_share(forget: PerSample, own: PerSample | None, others: ClassTable | None) -> float:
    """The client's share of the hold-out samples of its classes, weighted with the label mix of the samples to forget."""
    if own is None or others is None or own.by_class.classes != others.classes:
        return 0.0
    mine = np.asarray(own.by_class.counts, np.float64)
    all_of_them = mine + np.asarray(others.counts, np.float64)
    mix = np.bincount(as_classes(forget.labels, others.classes), minlength=others.classes) / forget.labels.size
    return float((mix * mine / np.maximum(all_of_them, 1.0)).sum())
