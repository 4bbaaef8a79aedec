"""What a person at a terminal sees while work goes on. Elsewhere there are logs and no bars."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Display", "console", "stderr"]


def console() -> Console:
    """For results, on stdout. Numbers are not coloured, and text from elsewhere is never read as markup."""
    # Whoever reads a pipe wants whole ids, not lines that fit a screen.
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 200)


def stderr() -> TextIO:
    """Stderr as it is at the moment of writing: a bar replaces it meanwhile, and logs must go above the bar."""
    return cast(TextIO, _CurrentStderr())


class _CurrentStderr:
    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()


class Display:
    """One line that tells what is going on, with a bar where there is something to count."""

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

    def say(self, text: str, note: str = "") -> None:
        """Something that cannot be counted."""
        self._progress.reset(self._line, description=text, total=None, note=note)

    def count(self, done: int, total: int, note: str = "") -> None:
        self._progress.update(self._line, completed=done, total=total, note=note or f"{done} of {total}")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
