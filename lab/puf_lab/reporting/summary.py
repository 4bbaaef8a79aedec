"""Rows of a table from runs: means over targets, distances to the retrained model of the same target, recovery.

A run that did not recover stays in every mean. A mean of differences that contradicts the means is refused. The noise
floor is the distance between Retrain and Retrain with another training seed. Nothing is ranked inside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from puf_common.errors import UsageError
from puf_lab.evaluation.comparison import (
    NEAR_POINTS,
    Delta,
    Mean,
    Recovery,
    RecoverySummary,
    delta_to_retrain,
    recovery_near,
    summarise_recoveries,
)
from puf_lab.evaluation.metrics import DESCRIPTIVE, METRICS
from puf_lab.evaluation.statistics import Cell, Interval, best, bootstrap, differ, paired
from puf_lab.reporting.results import Results, Run

# Metrics that are compared with the retrained model, in the order of the paper's table.
_COMPARED = ("forget", "song", "yeom", "loss", "rmia")
# The share of a method's runs that must recover before it is called closest.
LEAST_RECOVERED = 0.8


@dataclass(frozen=True)
class SummaryRow:
    """One method. `values` and `deltas` are at completion, `later` has the deltas at other stages.

    `distances` has the absolute differences to Retrain behind the deltas: by stage, metric and cell. At the stage
    "equal" they are those of the runs that reached Retrain's test accuracy.
    """

    method: str
    label: str
    runs: int
    values: dict[str, Mean]
    deltas: dict[str, Delta]
    nbytes: float
    samples: float
    rounds: float
    later: dict[str, dict[str, Delta]] = field(default_factory=dict)
    recovery: RecoverySummary | None = None
    near: RecoverySummary | None = None
    distances: dict[str, dict[str, dict[Cell, float]]] = field(default_factory=dict)
    dips: dict[Cell, float] = field(default_factory=dict)
    """Lowest test accuracy from the request to completion, minus that of the original."""
    deficit: float = 0.0
    """Mean of Retrain's test accuracy minus that of the model at completion."""

    @property
    def recovered_all(self) -> bool:
        """Whether every run recovered. Natural has no request that could stay incomplete."""
        return self.method.split()[0] == "natural" or self._recovered_share == 1

    @property
    def recovered_most(self) -> bool:
        """Whether enough runs recovered for the method to be called closest."""
        return self.recovered_all or self._recovered_share >= LEAST_RECOVERED

    @property
    def _recovered_share(self) -> float:
        return self.recovery.recovered / self.recovery.targets if self.recovery else 1.0

    def interval(self, metric: str, stage: str = "end") -> Interval | None:
        """Mean distance to Retrain and its interval. The stage "end" is completion."""
        cells = self.distances.get(stage, {}).get(metric)
        return bootstrap(cells) if cells else None


@dataclass(frozen=True)
class Summary:
    results: Results
    rows: list[SummaryRow]

    @property
    def targets(self) -> int:
        return len({run.targets for run in self.results.runs})

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.results.runs})

    @property
    def runs_text(self) -> str:
        counts = ((self.targets, "target"), (self.seeds, "seed"))
        return " and ".join(f"{number} {word}{'s' * (number != 1)}" for number, word in counts)

    @property
    def gap(self) -> Delta | None:
        """The original's distance to the retrained model on the forget data: what there is to forget."""
        original = self.row("original")
        return original.deltas["forget"] if original else None

    @property
    def measurable(self) -> bool | None:
        """Whether the interval of the gap is above zero. None for fewer than two runs."""
        trained = {run.cell: run.values["trained"]["forget"] for run in self.results.of("retrain")}
        gaps = {run.cell: run.values["trained"]["forget"] - trained[run.cell] for run in self.results.of("original")}
        low = bootstrap(gaps).low if gaps else None
        return None if low is None else low > 0

    @property
    def recovering(self) -> list[SummaryRow]:
        """Methods with an unlearning step and recovery."""
        return [row for row in self.rows if row.recovery is not None]

    @property
    def floor(self) -> SummaryRow | None:
        """Retrain with another training seed. Files of version 0.1.0 have no such runs."""
        return self.row("floor")

    def floor_of(self, metric: str) -> Interval | None:
        """The noise floor of a metric, with its interval: what two retrained models differ by."""
        return self.floor.interval(metric) if self.floor else None

    def noise(self, metric: str) -> float | None:
        """The floor as one number, its mean. It decides what is bold and distinguishable, and is the band in figures."""
        floor = self.floor_of(metric)
        return floor.mean if floor else None

    def is_ranked(self, row: SummaryRow) -> bool:
        """Whether the model is good enough to be ranked: its test accuracy is not below Retrain's by more than noise.

        A method is left out only if it is clearly below: here the upper end of the floor's interval counts.
        """
        floor = self.floor_of("test")
        return row.recovery is not None and row.deficit <= max(NEAR_POINTS, floor.upper if floor else 0.0)

    def best(self, metric: str, stage: str = "end") -> frozenset[str]:
        """The methods that are closest to Retrain, of those that are ranked and of which most runs recovered.

        Empty where differences are inside the noise.
        """
        able = [row for row in self.recovering if self.is_compared(row)]
        rows = [row for row in able if row.distances.get(stage, {}).get(metric)]
        shared = set.intersection(*(set(row.distances[stage][metric]) for row in rows)) if rows else set()
        if not shared:
            return frozenset()
        found = {row.method: {cell: row.distances[stage][metric][cell] for cell in shared} for row in rows}
        return best(found, self.noise(metric))

    def is_compared(self, row: SummaryRow) -> bool:
        """Whether the method is called closer or further than others: it is ranked, and most of its runs recovered."""
        return self.is_ranked(row) and row.recovered_most

    def compare(self, row: SummaryRow, other: SummaryRow, metric: str) -> tuple[Interval, bool]:
        """Difference of both methods' distances to Retrain at completion, on the same targets and seeds.

        Also whether it is outside the noise.
        """
        ours, theirs = row.distances["end"][metric], other.distances["end"][metric]
        noise = self.noise(metric)
        return paired(ours, theirs), noise is not None and differ(ours, theirs, noise)

    def row(self, method: str) -> SummaryRow | None:
        return next((row for row in self.rows if row.method == method), None)


def format_value(name: str, value: Mean | None) -> str:
    """The text in tables. A loss is no percentage and has one more digit."""
    return "–" if value is None else value.text(2 if name == "loss" else 1)


def compared(summary: Summary) -> list[tuple[str, str]]:
    """(name, label) of the metrics of these results that are compared with the retrained model."""
    values = summary.rows[0].values
    user = [name for name in values if name not in ("test", *_COMPARED) and not name.startswith(DESCRIPTIVE)]
    names = [name for name in (*_COMPARED, *user) if name in values]
    if "song" in names and "loss" in names:
        names.remove("loss")  # for a classifier the attacks are more informative
    return [(name, METRICS[name].label if name in METRICS else name) for name in names]


def summarise(results: Results) -> Summary:
    retrained = {run.cell: run for run in results.of("retrain")}
    before = {run.cell: run.values["trained"]["test"] for run in results.of("original")}
    return Summary(results, [_row(results.of(method), retrained, before) for method in results.methods])


def _row(runs: list[Run], retrained: dict[Cell, Run], before: dict[Cell, float]) -> SummaryRow:
    first = runs[0]
    missing = [run for run in runs if run.cell not in retrained]
    if missing:
        raise UsageError(f"{first.label}: no retrained model for target {missing[0].targets}, seed {missing[0].seed}")
    partners = [retrained[run.cell] for run in runs]
    end = "trained" if first.recovered is None else "recovered"
    values = {name: Mean.of([run.values[end][name] for run in runs]) for name in first.values[end]}
    nbytes, samples, rounds = (
        float(np.mean([getattr(run, name) for run in runs])) for name in ("nbytes", "samples", "rounds")
    )
    deltas = _deltas(runs, partners, end) if first.method != "retrain" else {}
    distances = {"end": _distances(runs, retrained, end)} if deltas else {}
    row = SummaryRow(first.method, first.label, len(runs), values, deltas, nbytes, samples, rounds, distances=distances)
    if first.recovered is None:
        return row
    stages = [stage for stage in first.values if stage != end and all(stage in run.values for run in runs)]
    goals = [partner.values["trained"]["test"] for partner in partners]
    ways = [[(n, test) for n, test, _ in run.curve if n <= run.stages["recovered"]] for run in runs]
    curves = [[test for number, test in way if number >= 0] for way in ways]
    reached = [run for run in runs if "equal" in run.values]
    near = [recovery_near(curve, goal) for curve, goal in zip(curves, goals, strict=True)]
    return replace(
        row,
        later={stage: _deltas(runs, partners, stage) for stage in stages},
        recovery=summarise_recoveries([Recovery(run.stages["recovered"], run.recovered is True) for run in runs]),
        near=summarise_recoveries(near),
        distances={
            **distances,
            **{stage: _distances(runs, retrained, stage) for stage in stages},
            "equal": _distances(reached, retrained, "equal"),
        },
        dips={
            run.cell: min(test for _, test in way) - before[run.cell]
            for run, way in zip(runs, ways, strict=True)
            if run.cell in before
        },
        deficit=float(np.mean(goals)) - values["test"].mean,
    )


def _distances(runs: list[Run], retrained: dict[Cell, Run], stage: str) -> dict[str, dict[Cell, float]]:
    names = runs[0].values[stage] if runs else {}
    return {
        name: {run.cell: abs(run.values[stage][name] - retrained[run.cell].values["trained"][name]) for run in runs}
        for name in names
    }


def _deltas(runs: list[Run], partners: list[Run], stage: str) -> dict[str, Delta]:
    return {
        name: delta_to_retrain(
            [run.values[stage][name] for run in runs], [partner.values["trained"][name] for partner in partners]
        )
        for name in runs[0].values[stage]
    }
