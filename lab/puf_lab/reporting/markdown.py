"""Markdown tables that are also readable as plain text."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table with padded cells: the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

    def line(cells: Sequence[str]) -> str:
        first, *others = cells
        padded = [first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:], strict=True))]
        return "| " + " | ".join(padded) + " |"

    return "\n".join([line(head), "| " + " | ".join(rule) + " |", *map(line, rows)]) + "\n"
