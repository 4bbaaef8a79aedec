"""The rounds of a run whose models are kept and measured with every metric."""

from __future__ import annotations

from puf_lab.evaluation.comparison import NEAR_POINTS
from puf_lab.spec.experiment import ExperimentSpec


class Stages:
    """Rounds by stage: unlearned, horizon, equal, recovered, and some rounds later.

    Round 0 is the model right after unlearning; rounds of a method before it are negative. "equal" is the first round
    with about the retrained model's test accuracy, so that methods are compared at equal accuracy. "recovered" is
    completion: by the paper's rule at the retrained model's accuracy, or by the service (`complete`). A run that does
    not recover in time is completed too, and marked as not recovered.
    """

    def __init__(self, experiment: ExperimentSpec, goal: float, *, first: int = 0, by_service: bool = False) -> None:
        """`goal` is the retrained model's test accuracy, `first` the first round that can count as recovered."""
        self._experiment = experiment
        self._goal = goal
        self._first = first
        self._by_service = by_service
        self.recovered: bool | None = None
        self.rounds: dict[str, int] = {"unlearned": 0, "horizon": experiment.horizon}

    def add(self, number: int, test: float) -> None:
        """Takes the test accuracy after this round into account."""
        if number < self._first:
            return
        if "equal" not in self.rounds and test >= self._goal - NEAR_POINTS:
            self.rounds["equal"] = number
        if self.recovered is None and not self._by_service:
            reached = test >= self._goal
            if reached or number >= self._experiment.recovery_rounds:
                self.complete(number, reached)

    def complete(self, number: int, recovered: bool) -> None:
        """Ends recovery after this round."""
        self.recovered = recovered
        self.rounds["recovered"] = number
        self.rounds |= {f"after {n}": number + n for n in self._experiment.persistence}

    def over(self, number: int) -> bool:
        """Whether all stages are reached. The stage "equal" is not waited for."""
        return self.recovered is not None and number >= max(self.rounds.values())
