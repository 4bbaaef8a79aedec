"""Tables of an experiment as rows of text, and those rows as Markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from puf_lab import paper
from puf_lab.evaluation.costs import Cost, Shape, cost
from puf_lab.reporting.summary import Line, Summary, compared, told

__all__ = ["Sheet", "sheets"]

_MISSING = "–"
_MARK = "†"


@dataclass(frozen=True)
class Sheet:
    """A table: the first column is text, the others are numbers. Notes stand below it."""

    name: str
    title: str
    head: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [self.head, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

        def text(line: Sequence[str]) -> str:
            cells = [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
            return "| " + " | ".join(cells) + " |"

        body = "\n".join([text(self.head), "| " + " | ".join(rule) + " |", *map(text, self.rows)])
        return f"**{self.title}**\n\n{body}\n" + "".join(f"\n{note}\n" for note in self.notes)

    def csv(self) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.head, *self.rows])
        return out.getvalue()

    def latex(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return " & ".join(_tex(cell) for cell in cells) + r" \\"

        body = "\n".join(line(row) for row in self.rows)
        notes = "".join(f"\n% {note}" for note in self.notes)
        columns = "l" + "r" * (len(self.head) - 1)
        return (
            f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{line(self.head)}\n\\midrule\n{body}\n"
            f"\\bottomrule\n\\end{{tabular}}{notes}\n"
        )

    def html(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self.rows)
        notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in self.notes)
        return f"<h3>{html.escape(self.title)}</h3><table>{row(self.head, 'th')}{body}</table>{notes}"


def sheets(summary: Summary) -> list[Sheet]:
    """Everything that is told in numbers."""
    made = [_efficacy(summary), _lasting(summary), _costs(summary)]
    beside = _beside(summary)
    return [*made, beside] if beside else made


def _efficacy(summary: Summary) -> Sheet:
    metrics = compared(summary)
    rows = [
        [
            line.label,
            str(line.values["test"]),
            *(cell for n, _ in metrics for cell in (told(n, line.values[n]), told(n, line.deltas.get(n)))),
            str(line.recovery or _MISSING),
            str(line.near or _MISSING),
        ]
        for line in summary.lines
    ]
    head = ["method", "test", *(c for _, label in metrics for c in (label, f"Δ {label}"))]
    notes = [
        f"Mean ± sd over {summary.targets} targets and {summary.seeds} seeds, in per cent (loss aside). Δ is the mean of "
        "the absolute differences to the model retrained without the same target.",
        "Recovery: rounds to the retrained model's test score (≥ where some runs did not get there in time; they count "
        "with the rounds they were given), and to one point below it.",
    ]
    if any(name == "rmia" for name, _ in metrics):
        notes.append(
            "RMIA AUC: chance that a forgotten sample looks more like training data than an unseen one, with the retrained "
            "model as reference; 50 is like unseen data, and the retrained model itself has 50 by construction."
        )
    return Sheet("efficacy", "What the models know", [*head, "recovery rounds", "to −1 point"], rows, notes)


def _lasting(summary: Summary) -> Sheet:
    """The model right after unlearning, at the common horizon, and some rounds after completion."""
    lines = [line for line in summary.lines if line.recovery is not None]
    e = summary.results.experiment
    stages = [("unlearned", "at once"), ("horizon", f"after {e['horizon']} rounds"), ("recovered", "at completion")]
    stages += [(f"after {n}", f"{n} rounds later") for n in e["persistence"]]
    metrics = [m for m in compared(summary) if m[0] in ("forget", "rmia", "loss")][:2]
    head = ["method", *(f"Δ {label}, {when}" for _, label in metrics for _, when in stages)]
    rows = []
    for line in lines:
        at = {**line.later, "recovered": line.deltas}
        rows.append([line.label, *(told(n, at.get(s, {}).get(n)) for n, _ in metrics for s, _ in stages)])
    notes = [
        "At a fixed horizon methods are compared after equally much training; later: does what was forgotten return?"
    ]
    return Sheet("lasting", "At once, at a fixed horizon, and later", head, rows, notes)


def _shape(summary: Summary) -> Shape:
    e, facts = summary.results.experiment, summary.results.facts[0]
    samples = facts["samples_per_client"]
    return Shape(
        parameters=facts["parameters"],
        flops_per_sample=e["model"]["flops_per_sample"],
        samples_per_client=sum(samples) / len(samples),
        clients=e["data"]["clients"],
        targets=len(e["targets"][0]),
        epochs=e["recipe"]["epochs"],
        rounds=e["rounds"],
        head_parameters=e["model"]["head_parameters"],
        targets_stay=e["samples"] is not None,
    )


def formula_cost(summary: Summary, line: Line) -> Cost | None:
    """By the appendix; None for what it has no formula for."""
    name = line.label.split()[0]
    if name == "Original":
        return None
    options = dict(word.split("=", 1) for word in line.method.split()[1:])
    try:
        return cost(name, _shape(summary), line.recovery.mean if line.recovery else 0.0, **_floats(options))
    except ValueError:
        return None


def _floats(options: dict[str, str]) -> dict[str, float]:
    known = ("retained_rounds", "calibration_epochs", "ascent_epochs", "degradation_rounds", "guidance_rounds")
    return {key: float(value) for key, value in options.items() if key in known}


def _costs(summary: Summary) -> Sheet:
    retrained = summary.line("retrain")
    assert retrained is not None
    reference = formula_cost(summary, retrained)
    rows = []
    for line in (line for line in summary.lines if line.method != "original"):
        formula = formula_cost(summary, line)
        times = formula.relative_to(reference) if formula and reference else None
        rows.append(
            [
                line.label,
                f"{line.rounds:.1f}",
                f"{line.nbytes:.3g}",
                _ratio(retrained.nbytes, line.nbytes),
                f"{formula.communication:.3g}" if formula else _MISSING,
                f"{times.communication:.1f}×" if times and math.isfinite(times.communication) else _MISSING,
                f"{line.samples:.3g}",
                _ratio(retrained.samples, line.samples),
                f"{formula.computation:.3g}" if formula and formula.computation else _MISSING,
                f"{formula.storage:.3g}" if formula else _MISSING,
            ]
        )
    head = ["method", "rounds", "bytes counted", "less than Retrain", "bytes by formula", "less by formula"]
    head += ["samples trained on", "less than Retrain", "FLOPs by formula", "storage by formula"]
    notes = [
        "Counted: tensor bytes both ways and samples trained on in unlearning and recovery. By formula: the paper's "
        "appendix with the mean recovery rounds from here. FLOPs only where a figure per sample is stated."
    ]
    return Sheet("costs", "What it costs", head, rows, notes)


def _ratio(reference: float, value: float) -> str:
    return f"{reference / value:.1f}×" if value else _MISSING


def _beside(summary: Summary) -> Sheet | None:
    """The paper's table and ours, cell by cell."""
    name = summary.results.experiment["paper"]
    theirs = {row.method: row for row in paper.rows() if row.setting == name}
    if not theirs:
        return None
    metrics = [
        metric for metric in ("forget", "song", "yeom", "loss") if any(r[metric] is not None for r in theirs.values())
    ]
    notes: list[str] = []
    rows = []
    impossible = {(row.setting, row.method, metric) for row, metric, *_ in paper.impossible()}
    for line in summary.lines:
        row = theirs.get(line.label)
        if row is None:
            continue
        cells = [line.label, f"{_number(row['test'])}{_marked(row, 'test', notes)}", f"{line.values['test'].mean:.1f}"]
        for metric in metrics:
            wrong = _marked(row, f"{metric}_delta", notes)
            if (row.setting, row.method, metric) in impossible:
                wrong = wrong or _noted(
                    notes,
                    f"{row.method}, {metric}: the paper's mean difference is smaller than the difference of its means",
                )
            here = line.deltas.get(metric)
            digits = 2 if metric == "loss" else 1
            theirs_told = _number(row[f"{metric}_delta"], digits)
            cells += [f"{theirs_told}{wrong}", f"{here.mean:.{digits}f}" if here else _MISSING]
        reference = theirs.get("Retrain")
        times = _times(reference["communication"] if reference else None, row["communication"])
        mine = summary.line("retrain")
        cells += [f"{times}{_marked(row, 'communication', notes)}", _ratio(mine.nbytes if mine else 0, line.nbytes)]
        rows.append(cells)
    head = ["method", "test: paper", "here"]
    for metric in metrics:
        head += [f"Δ {metric}: paper", "here"]
    head += ["less bytes: paper", "here"]
    experiment = summary.results.experiment
    first = f"Here: {experiment['note']}" if experiment["note"] else "Here: the paper's own sizes."
    return Sheet("paper", f"Beside the paper ({name})", head, rows, [first, *notes])


def _marked(row: paper.Row, column: str, notes: list[str]) -> str:
    marks = [
        _noted(notes, f"{e.method if e.method != '*' else 'All'}: {e.text}")
        for e in paper.errata()
        if e.concerns(row, column)
    ]
    return marks[0] if marks and row[column] is not None else ""


def _noted(notes: list[str], text: str) -> str:
    told = f"{_MARK} {text}."
    if told not in notes:
        notes.append(told)
    return _MARK


def _number(value: float | None, digits: int = 1) -> str:
    return _MISSING if value is None else f"{value:.{digits}f}"


def _times(reference: float | None, value: float | None) -> str:
    return f"{reference / value:.1f}×" if reference and value else _MISSING


def _tex(text: str) -> str:
    for plain, escaped in (
        ("%", r"\%"),
        ("_", r"\_"),
        ("Δ", r"$\Delta$"),
        ("±", r"$\pm$"),
        ("×", r"$\times$"),
        ("≥", r"$\geq$"),
        ("−", "-"),
        ("–", "--"),
        ("†", r"$^\dagger$"),
    ):
        text = text.replace(plain, escaped)
    return text
