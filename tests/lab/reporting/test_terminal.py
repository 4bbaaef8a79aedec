"""Tables in terminals of any width: nothing is cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from puf_lab.reporting.terminal import fitting_columns, print_table

HEAD = ["", "Δ forget", "Δ MIA Song", "recovery rounds"]
ROWS = [["Original", "37.5 [25.0, 50.0]", "15.0 [15.0, 15.0]", "–"], ["NoT ‡", "**2.0**", "–", "≥ 1.5±0.7 (1 of 2)"]]


def test_columns_are_grouped_by_width() -> None:
    # 8 + 3, 17 + 3, 17 + 3 and 18 + 3 characters.
    assert list(fitting_columns(HEAD, ROWS, 72)) == [[0, 1, 2, 3]]
    assert list(fitting_columns(HEAD, ROWS, 71)) == [[0, 1, 2], [0, 3]]
    assert list(fitting_columns(HEAD, ROWS, 20)) == [[0, 1], [0, 2], [0, 3]]
    assert list(fitting_columns(HEAD, ROWS, 60, keys=2)) == [[0, 1, 2], [0, 1, 3]]


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_every_cell_is_printed_whole(width: int) -> None:
    out = io.StringIO()
    print_table(Console(file=out, width=width, highlight=False), HEAD, ROWS)
    text = out.getvalue()
    assert all(cell.strip("*") in text for row in ROWS for cell in row)
    assert "*" not in text, "bold in a terminal needs no asterisks"
    assert max(map(len, text.splitlines())) <= width
