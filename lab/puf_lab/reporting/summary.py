"""Rows of a table from runs: means over targets, distances to the retrained model of the same target, recovery.

A run that did not recover stays in every mean. A mean of differences that contradicts the means is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from puf_common.errors import UsageError
from puf_lab.evaluation.comparison import (
    Delta,
    Mean,
    Recovery,
    RecoverySummary,
    delta_to_retrain,
    recovery_near,
    summarise_recoveries,
)
from puf_lab.evaluation.metrics import METRICS
from puf_lab.reporting.results import Results, Run

if TYPE_CHECKING:
    from rich.table import Table

# Metrics that are compared with the retrained model, in the order of the paper's table.
_COMPARED = ("forget", "song", "yeom", "loss", "rmia")


@dataclass(frozen=True)
class SummaryRow:
    """One method. `values` and `deltas` are at completion, `later` has the deltas at other stages."""

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
    def gap(self) -> Delta | None:
        """The original's distance to the retrained model on the forget data: what there is to forget."""
        original = self.row("original")
        return original.deltas["forget"] if original else None

    @property
    def measurable(self) -> bool | None:
        """Whether the gap exceeds zero by two standard errors over the runs. None for fewer than two runs."""
        trained = {(r.targets, r.seed): r.values["trained"]["forget"] for r in self.results.of("retrain")}
        gaps = [r.values["trained"]["forget"] - trained[r.targets, r.seed] for r in self.results.of("original")]
        if len(gaps) < 2:
            return None
        return bool(np.mean(gaps) > 2 * np.std(gaps, ddof=1) / np.sqrt(len(gaps)))

    @property
    def recovering(self) -> list[SummaryRow]:
        """Methods with an unlearning step and recovery."""
        return [row for row in self.rows if row.recovery is not None]

    def row(self, method: str) -> SummaryRow | None:
        return next((row for row in self.rows if row.method == method), None)


def format_value(name: str, value: Mean | None) -> str:
    """The text in tables. A loss is no percentage and has one more digit."""
    return "–" if value is None else value.text(2 if name == "loss" else 1)


def compared(summary: Summary) -> list[tuple[str, str]]:
    """(name, label) of the metrics of these results that are compared with the retrained model."""
    values = summary.rows[0].values
    user = [name for name in values if name not in ("test", *_COMPARED) and not name.startswith("rmia_")]
    names = [name for name in (*_COMPARED, *user) if name in values]
    if "song" in names and "loss" in names:
        names.remove("loss")  # for a classifier the attacks are more informative
    return [(name, METRICS[name].label if name in METRICS else name) for name in names]


def summarise(results: Results) -> Summary:
    retrained = {(run.targets, run.seed): run for run in results.of("retrain")}
    return Summary(results, [_row(results.of(method), retrained) for method in results.methods])


def _row(runs: list[Run], retrained: dict[tuple[str, int], Run]) -> SummaryRow:
    first = runs[0]
    missing = [run for run in runs if (run.targets, run.seed) not in retrained]
    if missing:
        raise UsageError(f"{first.label}: no retrained model for target {missing[0].targets}, seed {missing[0].seed}")
    partners = [retrained[run.targets, run.seed] for run in runs]
    end = "trained" if first.recovered is None else "recovered"
    values = {name: Mean.of([run.values[end][name] for run in runs]) for name in first.values[end]}
    nbytes, samples, rounds = (
        float(np.mean([getattr(run, name) for run in runs])) for name in ("nbytes", "samples", "rounds")
    )
    deltas = _deltas(runs, partners, end) if first.method != "retrain" else {}
    row = SummaryRow(first.method, first.label, len(runs), values, deltas, nbytes, samples, rounds)
    if first.recovered is None:
        return row
    stages = [stage for stage in first.values if stage != end and all(stage in run.values for run in runs)]
    goals = [partner.values["trained"]["test"] for partner in partners]
    curves = [[test for _, test, _ in run.curve[: run.stages["recovered"] + 1]] for run in runs]
    near = [recovery_near(curve, goal) for curve, goal in zip(curves, goals, strict=True)]
    return replace(
        row,
        later={stage: _deltas(runs, partners, stage) for stage in stages},
        recovery=summarise_recoveries([Recovery(run.stages["recovered"], run.recovered is True) for run in runs]),
        near=summarise_recoveries(near),
    )


def _deltas(runs: list[Run], partners: list[Run], stage: str) -> dict[str, Delta]:
    return {
        name: delta_to_retrain(
            [run.values[stage][name] for run in runs], [partner.values["trained"][name] for partner in partners]
        )
        for name in runs[0].values[stage]
    }


def rich_summary(summary: Summary) -> Table:
    """The summary for terminals."""
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
    for row in summary.rows:
        table.add_row(
            row.label,
            f"{row.values['test'].mean:.1f}",
            f"{row.values['forget'].mean:.1f}",
            *(format_value(name, row.deltas.get(name)).replace(" ± ", "±") for name, _ in metrics),
            str(row.recovery or "–").replace(" ± ", "±"),
            f"{row.nbytes / 1e6:,.1f}",
        )
    return table
