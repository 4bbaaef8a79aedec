"""Goals that forgetting must reach: distances to Retrain relative to the noise floor, and the dip in test accuracy.

Goals are means over several targets and seeds, because a single target is within chance. A setting states its bounds
under [goals].
"""

from __future__ import annotations

from dataclasses import dataclass

from puf_common.errors import UsageError
from puf_lab.evaluation.statistics import bootstrap
from puf_lab.reporting.summary import Summary, SummaryRow
from puf_lab.spec.experiment import ExperimentSpec, Goals

_MIN_RUNS = 3
_LABELS = {"forget": "Δ forget", "rmia": "Δ RMIA"}


@dataclass(frozen=True)
class Goal:
    """A measured value and its upper bound."""

    method: str
    name: str
    value: float
    bound: float

    @property
    def met(self) -> bool:
        return self.value <= self.bound

    def __str__(self) -> str:
        return (
            f"{'met   ' if self.met else 'MISSED'}  {self.method}, {self.name}: {self.value:.1f} (≤ {self.bound:.1f})"
        )


def stated_goals(experiment: ExperimentSpec) -> Goals:
    """The setting's goals. Refuses an experiment that cannot be judged, before it runs."""
    goals = experiment.goals
    if goals is None:
        raise UsageError(f"{experiment.name} states no goals; add a table [goals] with forget, rmia and dip")
    if goals.method not in {variant.name for variant in experiment.variants}:
        raise UsageError(f"the goals are for {goals.method}; this experiment has no {goals.method}")
    if len(experiment.targets) * len(experiment.seeds) < _MIN_RUNS:
        raise UsageError(f"goals need at least {_MIN_RUNS} targets times seeds: a single target is within chance")
    return goals


def goals_of(summary: Summary, goals: Goals) -> list[Goal]:
    """The goals of every method that forgets, with the values of this experiment."""
    rows = [row for row in summary.recovering if row.method != "natural"]
    return [goal for row in rows for goal in _goals_of(summary, row, goals)]


def judged(found: list[Goal], goals: Goals) -> list[Goal]:
    """The goals whose miss is a failure."""
    return [goal for goal in found if goal.method.split()[0] == goals.method]


def _goals_of(summary: Summary, row: SummaryRow, goals: Goals) -> list[Goal]:
    stages = {"end": ""} | {f"after {n}": f" +{n}" for n in summary.results.experiment["persistence"]}
    found = []
    for metric, margin in (("forget", goals.forget), ("rmia", goals.rmia)):
        floor = summary.floor_of(metric)
        assert floor is not None
        for stage, when in stages.items():
            distance = row.interval(metric, stage)
            if distance is not None:
                found.append(Goal(row.method, _LABELS[metric] + when, distance.mean, floor.mean + margin))
    if goals.dip is not None:
        found.append(Goal(row.method, "dip", -bootstrap(row.dips).mean, goals.dip))
    return found
