"""Goals that forgetting must reach in an experiment, as numbers with bounds (`puf-lab run --goals`).

Goals are means over several targets, because a single target is within chance.
"""

from __future__ import annotations

from dataclasses import dataclass

from puf_common.errors import UsageError
from puf_lab.reporting.summary import Summary, SummaryRow
from puf_lab.spec.experiment import ExperimentSpec

_MODES = ("puf-special", "puf-regular")
_NEEDED = ("natural", *_MODES)
_MIN_TARGETS = 3


@dataclass(frozen=True)
class Goal:
    """A measured value and its bound."""

    name: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{'met   ' if self.met else 'MISSED'}  {self.name}: {self.value:.1f} ({sign} {self.bound:.1f})"


def check_goals_apply(experiment: ExperimentSpec) -> None:
    """Refuses an experiment that cannot be judged, before it runs."""
    missing = [name for name in _NEEDED if name not in {variant.name for variant in experiment.variants}]
    if missing:
        raise UsageError(f"--goals compares {', '.join(_NEEDED)}; this experiment has no {missing[0]}")
    if len(experiment.targets) < _MIN_TARGETS:
        raise UsageError(f"--goals needs at least {_MIN_TARGETS} targets: a single target is within chance")


def goals_of(summary: Summary) -> list[Goal]:
    """The goals with the values of this experiment."""
    assert summary.gap is not None
    natural = _row(summary, "natural").deltas["forget"].mean
    goals = [
        Goal("gap between Original and Retrain on the forget data", summary.gap.mean, 12.0, True),
        Goal("Δ forget of Natural", natural, 12.0, True),
    ]
    for mode in _MODES:
        row = _row(summary, mode)
        delta = row.deltas["forget"].mean
        assert row.recovery is not None
        goals += [
            Goal(f"Δ forget of {row.label}", delta, 8.0),
            Goal(f"Δ forget of {row.label} in per cent of Natural's", 100 * delta / natural, 50.0),
            Goal(f"mean recovery rounds of {row.label}", row.recovery.mean, 10.0),
        ]
    return goals


def _row(summary: Summary, method: str) -> SummaryRow:
    return next(row for row in summary.rows if row.method.split()[0] == method)
