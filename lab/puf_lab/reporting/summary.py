"""From runs to the lines of a table: means over targets, differences to the retrained model of the same target, recovery.

A run that never recovered stays in every mean; a mean of differences that contradicts the means cannot be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from puf_common.errors import UsageError
from puf_lab.evaluation.metrics import (
    Delta,
    Recovery,
    RecoverySummary,
    delta_to_retrain,
    recovery_near,
    summarise_recoveries,
)
from puf_lab.reporting.results import Results, Run

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Line", "Mean", "Summary", "compared", "rich_summary", "summarise", "told"]

# Metrics of which the difference to the retrained model counts, in the order of the paper's table.
_COMPARED = ("forget", "song", "yeom", "loss", "rmia")
_LABELS = {"forget": "forget", "song": "MIA Song", "yeom": "MIA Yeom", "loss": "forget loss", "rmia": "RMIA AUC"}


@dataclass(frozen=True)
class Mean:
    """Over targets and seeds; `sd` is None for a single one."""

    mean: float
    sd: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        array = np.asarray(values, np.float64)
        return cls(float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.sd is None else f"{self.mean:.1f} ± {self.sd:.1f}"


@dataclass(frozen=True)
class Line:
    """One method. `values` and `deltas` are at completion, `later` the deltas at other stages."""

    method: str
    label: str
    runs: int
    values: dict[str, Mean]
    deltas: dict[str, Delta] = field(default_factory=dict)
    later: dict[str, dict[str, Delta]] = field(default_factory=dict)
    recovery: RecoverySummary | None = None
    near: RecoverySummary | None = None
    costs: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Bytes, samples and rounds, mean over the runs."""

    @property
    def nbytes(self) -> float:
        return self.costs[0]

    @property
    def samples(self) -> float:
        return self.costs[1]

    @property
    def rounds(self) -> float:
        return self.costs[2]


@dataclass(frozen=True)
class Summary:
    results: Results
    lines: list[Line]

    @property
    def targets(self) -> int:
        return len({run.targets for run in self.results.runs})

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.results.runs})

    @property
    def gap(self) -> Delta | None:
        """What there is to forget: the original's distance to the retrained model on the forget data."""
        return next((line.deltas["forget"] for line in self.lines if line.method == "original"), None)

    @property
    def measurable(self) -> bool | None:
        """Whether that is more than chance: two standard errors over the runs above zero. None for fewer than two runs."""
        trained = {(r.targets, r.seed): r.values["trained"]["forget"] for r in self.results.of("retrain")}
        gaps = [r.values["trained"]["forget"] - trained[r.targets, r.seed] for r in self.results.of("original")]
        if len(gaps) < 2:
            return None
        return bool(np.mean(gaps) > 2 * np.std(gaps, ddof=1) / np.sqrt(len(gaps)))

    def line(self, method: str) -> Line | None:
        return next((line for line in self.lines if line.method == method), None)


def told(name: str, value: Mean | Delta | None) -> str:
    """As tables print it: a loss is no percentage and has a digit more."""
    if value is None:
        return "–"
    digits = 2 if name == "loss" else 1
    return f"{value.mean:.{digits}f}" + ("" if value.sd is None else f" ± {value.sd:.{digits}f}")


def compared(summary: Summary) -> list[tuple[str, str]]:
    """(name, label) of the metrics that these results have and that are compared with the retrained model."""
    line = summary.lines[0]
    own = [name for name in line.values if name not in ("test", *_COMPARED) and not name.startswith("rmia_")]
    names = [name for name in (*_COMPARED, *own) if name in line.values]
    if "song" in names and "loss" in names:
        names.remove("loss")  # of a classifier the attacks say more
    return [(name, _LABELS.get(name, name)) for name in names]


def summarise(results: Results) -> Summary:
    retrained = {(run.targets, run.seed): run for run in results.of("retrain")}
    return Summary(results, [_line(results.of(method), retrained) for method in results.methods])


def _line(runs: list[Run], retrained: dict[tuple[str, int], Run]) -> Line:
    first = runs[0]
    missing = [run for run in runs if (run.targets, run.seed) not in retrained]
    if missing:
        raise UsageError(f"{first.label}: no retrained model for target {missing[0].targets}, seed {missing[0].seed}")
    partners = [retrained[run.targets, run.seed] for run in runs]
    end = "trained" if first.recovered is None else "recovered"
    values = {name: Mean.of([run.values[end][name] for run in runs]) for name in first.values[end]}
    if first.method == "retrain":
        return Line(first.method, first.label, len(runs), values, costs=_costs(runs))
    deltas = _deltas(runs, partners, end)
    if first.recovered is None:
        return Line(first.method, first.label, len(runs), values, deltas, costs=_costs(runs))
    stages = [stage for stage in first.values if stage != end and all(stage in run.values for run in runs)]
    goals = [partner.values["trained"]["test"] for partner in partners]
    curves = [[test for _, test, _ in run.curve[: run.stages["recovered"] + 1]] for run in runs]
    near = [recovery_near(curve, goal) for curve, goal in zip(curves, goals, strict=True)]
    return Line(
        first.method,
        first.label,
        len(runs),
        values,
        deltas,
        later={stage: _deltas(runs, partners, stage) for stage in stages},
        recovery=summarise_recoveries([Recovery(run.stages["recovered"], run.recovered is True) for run in runs]),
        near=summarise_recoveries(near),
        costs=_costs(runs),
    )


def _deltas(runs: list[Run], partners: list[Run], stage: str) -> dict[str, Delta]:
    return {
        name: delta_to_retrain(
            [run.values[stage][name] for run in runs], [partner.values["trained"][name] for partner in partners]
        )
        for name in runs[0].values[stage]
    }


def _costs(runs: list[Run]) -> tuple[float, float, float]:
    nbytes, samples, rounds = np.mean([(run.nbytes, run.samples, run.rounds) for run in runs], axis=0).tolist()
    return nbytes, samples, rounds


def rich_summary(summary: Summary) -> Table:
    """For terminals."""
    from rich.table import Table

    metrics = compared(summary)
    table = Table(
        title=f"mean over {summary.targets} targets (± sd); Δ is the distance to the model retrained without the target",
        title_justify="left",
        padding=(0, 0),
    )
    heads = ["", "test", "forget", *(f"Δ {label}" for _, label in metrics), "recovery rounds", "MB"]
    for head in heads:
        table.add_column(head, justify="left" if not head else "right", no_wrap=not head)
    for line in summary.lines:
        table.add_row(
            line.label,
            f"{line.values['test'].mean:.1f}",
            f"{line.values['forget'].mean:.1f}",
            *(told(name, line.deltas.get(name)).replace(" ± ", "±") for name, _ in metrics),
            str(line.recovery or "–").replace(" ± ", "±"),
            f"{line.nbytes / 1e6:,.1f}",
        )
    return table
