"""Whether what was forgotten comes back: the distances to Retrain some rounds after completion, minus those at completion."""

from __future__ import annotations

from puf_lab.evaluation.statistics import MIN_CELLS, differ, paired
from puf_lab.reporting.marks import full_name, mark_notes
from puf_lab.reporting.sheet import MISSING, Sheet
from puf_lab.reporting.summary import Summary, SummaryRow, compared

_METRICS = ("forget", "rmia")


def resurfacing(summary: Summary) -> Sheet | None:
    """The table, or None where no run goes on after completion."""
    later = [n for n in summary.results.experiment["persistence"] if _measured(summary, n)]
    metrics = [(name, label) for name, label in compared(summary) if name in _METRICS]
    if not later or not metrics:
        return None
    rows = [
        [full_name(summary, row), *(_change(summary, row, name, n) for name, _ in metrics for n in later)]
        for row in summary.recovering
    ]
    head = ["method", *(f"change of Δ {label}, {n} rounds later" for _, label in metrics for n in later)]
    notes = [
        "Δ so many rounds of training by retained clients after completion, minus Δ at completion, in the same runs, "
        "with the 95 % bootstrap interval. Positive: further from Retrain than at completion, on either side. A word "
        f"follows only where the interval excludes zero and the change exceeds the noise floor, with at least {MIN_CELLS} "
        "runs.",
        *mark_notes(summary),
    ]
    return Sheet("resurfacing", "Whether it comes back", head, rows, notes)


def _measured(summary: Summary, rounds: int) -> bool:
    return any(f"after {rounds}" in row.distances for row in summary.recovering)


def _change(summary: Summary, row: SummaryRow, metric: str, rounds: int) -> str:
    """The mean change with its interval, and a word where it is outside the noise."""
    before, after = (row.distances.get(stage, {}).get(metric) for stage in ("end", f"after {rounds}"))
    if not before or not after:
        return MISSING
    change, noise = paired(after, before), summary.noise(metric)
    if noise is None or not differ(after, before, noise):
        return change.text()
    return f"{change.text()} {'further' if change.mean > 0 else 'closer'}"
