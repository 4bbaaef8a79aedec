"""How much further from Retrain a method is than another retrained model: its distance minus that of the noise floor."""

from __future__ import annotations

from puf_lab.evaluation.statistics import MIN_CELLS, paired
from puf_lab.reporting.marks import full_name, mark_notes
from puf_lab.reporting.sheet import MISSING, Sheet
from puf_lab.reporting.summary import Summary, SummaryRow, compared


def beyond_floor(summary: Summary) -> Sheet | None:
    """The table, or None for runs without a noise floor."""
    if summary.floor is None:
        return None
    metrics = compared(summary)
    rows = [
        [full_name(summary, row), *(_cell(row, summary.floor, name) for name, _ in metrics)]
        for row in summary.recovering
    ]
    notes = [
        "Δ of the method at completion minus Δ of Retrain′, on the same targets and seeds, with the 95 % bootstrap "
        "interval. A word follows only where the interval is above zero, with at least "
        f"{MIN_CELLS} pairs: such models are distinguishable from retrained ones. Without a word these runs do not tell.",
        *mark_notes(summary),
    ]
    return Sheet(
        "beyond", "Distance beyond the noise floor", ["method", *(f"Δ {label}" for _, label in metrics)], rows, notes
    )


def _cell(row: SummaryRow, floor: SummaryRow, metric: str) -> str:
    ours, theirs = row.distances["end"].get(metric), floor.distances["end"].get(metric)
    if not ours or not theirs:
        return MISSING
    difference = paired(ours, theirs)
    beyond = difference.low is not None and difference.low > 0 and len(ours.keys() & theirs.keys()) >= MIN_CELLS
    return difference.text(2 if metric == "loss" else 1) + (" beyond" if beyond else "")
