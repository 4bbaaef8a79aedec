"""Marks behind the names of methods in tables and figures, and the notes that explain them."""

from __future__ import annotations

from puf_lab.reporting.summary import LEAST_RECOVERED, Summary, SummaryRow

_UNRANKED, _PARTLY = "‡", "§"
_NOT_RECOVERED = {
    "paper": "Some runs did not reach Retrain's test score in the rounds that they were given",
    "product": "The service did not call some runs recovered",
}


def mark(summary: Summary, row: SummaryRow) -> str:
    """The mark of a method, or nothing."""
    if row.recovery is None:
        return ""
    if not summary.is_ranked(row):
        return _UNRANKED
    return "" if row.recovered_all else _PARTLY


def short_name(summary: Summary, row: SummaryRow) -> str:
    """The label with its mark, for figures and for tables with a column of recovery."""
    return f"{row.label} {mark(summary, row)}".rstrip()


def full_name(summary: Summary, row: SummaryRow) -> str:
    """The label with its mark, and how many runs recovered where the mark says that some did not."""
    name = short_name(summary, row)
    if mark(summary, row) != _PARTLY or row.recovery is None:
        return name
    return f"{name} {row.recovery.recovered} of {row.recovery.targets}"


def mark_notes(summary: Summary) -> list[str]:
    """A sentence for each mark that occurs."""
    found = {mark(summary, row) for row in summary.recovering}
    notes = {
        _UNRANKED: "Test accuracy at completion is below Retrain's by more than noise: not ranked.",
        _PARTLY: f"{_NOT_RECOVERED[summary.results.experiment.get('stop', 'paper')]}; n of m recovered. "
        f"A method is called closest only if at least {100 * LEAST_RECOVERED:.0f} % of its runs recovered.",
    }
    return [f"{sign} {text}" for sign, text in notes.items() if sign in found]
