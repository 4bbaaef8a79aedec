"""The paper's table and the measured one, cell by cell, with known errors of the paper marked."""

from __future__ import annotations

from puf_lab.paper import tables as paper
from puf_lab.reporting.sheet import MISSING, Sheet, ratio
from puf_lab.reporting.summary import Summary, SummaryRow

_MARK = "†"


def beside_paper(summary: Summary) -> Sheet | None:
    """The table, or None for an experiment that is not in the paper."""
    experiment = summary.results.experiment
    name = experiment["paper"]
    theirs = {row.method: row for row in paper.rows() if row.setting == name}
    if not theirs:
        return None
    metrics = [m for m in paper.METRICS if any(r[m] is not None for r in theirs.values())]
    notes: list[str] = []
    rows = [
        _cells(summary, ours, theirs[ours.label], theirs.get("Retrain"), metrics, notes)
        for ours in summary.rows
        if ours.label in theirs
    ]
    head = ["method", "test: paper", "here"]
    for metric in metrics:
        head += [f"Δ {metric}: paper", "here"]
    head += ["less bytes: paper", "here"]
    first = f"Here: {experiment['note']}" if experiment["note"] else "Here: the paper's sizes."
    floors = [f"{metric} {floor.text()}" for metric in metrics if (floor := summary.floor_of(metric))]
    noise = [f"Noise floor here, which the paper does not have: Δ {', Δ '.join(floors)}."] if floors else []
    return Sheet("paper", f"Beside the paper ({name})", head, rows, [first, *noise, *notes])


def _cells(
    summary: Summary,
    ours: SummaryRow,
    row: paper.Row,
    retrained: paper.Row | None,
    metrics: list[str],
    notes: list[str],
) -> list[str]:
    cells = [ours.label, f"{_number(row['test'])}{_marked(row, 'test', notes)}", f"{ours.values['test'].mean:.1f}"]
    impossible = {(r.setting, r.method, metric) for r, metric, *_ in paper.impossible()}
    for metric in metrics:
        mark = _marked(row, f"{metric}_delta", notes)
        if not mark and (row.setting, row.method, metric) in impossible:
            text = f"{row.method}, {metric}: the paper's mean difference is smaller than the difference of its means"
            mark = _noted(notes, text)
        here = ours.deltas.get(metric)
        digits = 2 if metric == "loss" else 1
        printed = _number(row[f"{metric}_delta"], digits)
        cells += [f"{printed}{mark}", f"{here.mean:.{digits}f}" if here else MISSING]
    mine = summary.row("retrain")
    return [
        *cells,
        ratio(retrained["communication"] if retrained else None, row["communication"])
        + _marked(row, "communication", notes),
        ratio(mine.nbytes if mine else None, ours.nbytes),
    ]


def _marked(row: paper.Row, column: str, notes: list[str]) -> str:
    """The mark of a cell with a known error. The error is added to the notes."""
    found = [e for e in paper.errata() if e.concerns(row, column)]
    marks = [_noted(notes, f"{e.method if e.method != '*' else 'All'}: {e.text}") for e in found]
    return marks[0] if marks and row[column] is not None else ""


def _noted(notes: list[str], text: str) -> str:
    note = f"{_MARK} {text}."
    if note not in notes:
        notes.append(note)
    return _MARK


def _number(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"
