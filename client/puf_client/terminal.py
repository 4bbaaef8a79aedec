"""Output for a user at a terminal: results, a progress bar, a question. Without a terminal there is no bar."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from puf_common.errors import UsageError

if TYPE_CHECKING:
    from typing import Self


def console() -> Console:
    """Returns the console for results, on stdout. It does not colour numbers or interpret markup."""
    # A program that reads a pipe needs whole ids, not lines that fit a screen.
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 200)


def stderr() -> TextIO:
    """Returns a stream that writes to the current `sys.stderr`. A bar replaces it, and logs must go above the bar."""
    return cast(TextIO, _CurrentStderr())


class _CurrentStderr:
    def __getattr__(self, name: str) -> object:
        return getattr(sys.stderr, name)


class Display:
    """One line with the current activity, and a bar if there is something to count."""

    def __init__(self) -> None:
        out = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=out,
            transient=True,
            disable=not out.is_terminal,
        )
        self._line = self._progress.add_task("starting", total=None, note="")

    def say(self, text: str) -> None:
        """Shows an activity without a count."""
        if self._progress.disable:
            return
        self._progress.reset(self._line, description=text, total=None, note="")

    def count(self, done: int, total: int) -> None:
        if self._progress.disable:
            return
        self._progress.update(self._line, completed=done, total=total, note=f"{done} of {total}")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()


def confirm(question: str, name: str) -> None:
    """Asks the user to type the client's name. Raises `UsageError` for another answer or without a terminal."""
    if not sys.stdin.isatty():
        raise UsageError("confirmation needs a terminal: run the command in a terminal, or add --yes")
    out = console()
    out.print(question)
    try:
        typed = out.input(f"Type the client's name ({name}) to continue: ").strip()
    except EOFError:
        typed = ""
    if typed != name:
        raise UsageError("the name does not match; nothing was done")
