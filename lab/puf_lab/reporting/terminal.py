"""Console and tables of the lab's commands."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from puf_lab.reporting.summary import Summary

# Width for pipes and files, where rich would assume 80 columns and cut tables.
_WIDTH = 160
# Space between two columns.
_GAP = 3


def new_console() -> Console:
    """A console without automatic highlighting. Output to a pipe or file is wide enough for every table."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        return Console(highlight=False, width=_WIDTH)
    return console


def print_table(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]], *, keys: int = 1) -> None:
    """Prints the table in as many parts below each other as the width requires. Each begins with the `keys` first columns."""
    for columns in fitting_columns(head, rows, console.width, keys=keys):
        console.print(_table([head[i] for i in columns], [[row[i] for i in columns] for row in rows]))


def fitting_columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, keys: int = 1
) -> Iterator[list[int]]:
    """Groups of columns that fit the width. Each begins with the `keys` first columns. Heads may wrap between words."""
    needed = [_width(head[i], [row[i] for row in rows]) + _GAP for i in range(len(head))]
    chosen, used = [*range(keys)], sum(needed[:keys])
    for i in range(keys, len(head)):
        if used + needed[i] > width and len(chosen) > keys:
            yield chosen
            chosen, used = [*range(keys)], sum(needed[:keys])
        chosen.append(i)
        used += needed[i]
    yield chosen


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, header_style="bold")
    for i, title in enumerate(head):
        width = _width(title, [row[i] for row in rows])
        table.add_column(title, justify="right" if i else "left", min_width=width, overflow="fold")
    for row in rows:
        table.add_row(*(f"[bold]{_plain(cell)}[/bold]" if cell.startswith("**") else cell for cell in row))
    return table


def _width(head: str, cells: Sequence[str]) -> int:
    return max(len(word) for word in [*(head.split() or [""]), *map(_plain, cells)])


def _plain(cell: str) -> str:
    """The cell without the mark of a best value."""
    return cell.removeprefix("**").removesuffix("**")


def print_summary(console: Console, summary: Summary) -> None:
    """Prints distances to the retrained models, recovery and cost of every method."""
    from puf_lab.reporting.tables import short_table

    sheet = short_table(summary)
    print_table(console, sheet.head, sheet.marked())
    for note in sheet.notes:
        console.print(note, style="dim", markup=False)
