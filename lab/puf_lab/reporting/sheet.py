"""A table as text, and its form as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

MISSING = "–"
_TEX = str.maketrans({
    "%": r"\%", "_": r"\_", "Δ": r"$\Delta$", "±": r"$\pm$", "×": r"$\times$", "≥": r"$\geq$", "−": "-", "–": "--",
    "†": r"$^\dagger$", "‡": r"$^\ddagger$", "§": r"$^\S$", "′": "'",
})  # fmt: skip


@dataclass(frozen=True)
class Sheet:
    """A table. The first column is text, the others are numbers. Notes are printed below it."""

    name: str
    title: str
    head: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    best: frozenset[tuple[int, int]] = frozenset()
    """Cells (row, column) with a best value: printed in bold."""
    shaded: frozenset[int] = frozenset()
    """Rows that are no method but the noise floor."""

    def marked(self) -> list[list[str]]:
        """The rows with best values between two pairs of asterisks, as in Markdown."""
        return [
            [f"**{cell}**" if (i, j) in self.best else cell for j, cell in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]

    def markdown(self) -> str:
        table = markdown_table(self.head, self.marked())
        return f"**{self.title}**\n\n{table}" + "".join(f"\n{note}\n" for note in self.notes)

    def csv(self) -> str:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.head, *self.rows])
        return out.getvalue()

    def latex(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return " & ".join(cell.translate(_TEX) for cell in cells) + r" \\"

        def bold(i: int, row: Sequence[str]) -> list[str]:
            return [rf"\textbf{{{cell}}}" if (i, j) in self.best else cell for j, cell in enumerate(row)]

        body = "\n".join(line(bold(i, row)) for i, row in enumerate(self.rows))
        notes = "".join(f"\n% {note}" for note in self.notes)
        columns = "l" + "r" * (len(self.head) - 1)
        return (
            f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{line(self.head)}\n\\midrule\n{body}\n"
            f"\\bottomrule\n\\end{{tabular}}{notes}\n"
        )


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table with padded cells: the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

    def line(cells: Sequence[str]) -> str:
        first, *others = cells
        padded = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:], strict=True))]
        return "| " + " | ".join(padded) + " |"

    return "\n".join([line(head), "| " + " | ".join(rule) + " |", *map(line, rows)]) + "\n"


def size(nbytes: float) -> str:
    """Bytes with a readable unit of powers of 1000."""
    return _scaled(nbytes, ("B", "kB", "MB", "GB", "TB"))


def operations(count: float) -> str:
    """Floating-point operations with a readable unit of powers of 1000."""
    return _scaled(count, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))


def _scaled(value: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {units[-1]}"


def ratio(reference: float | None, value: float | None) -> str:
    """How many times less than the reference."""
    return f"{reference / value:.1f}×" if reference and value else MISSING
