"""Progress of the demo's phases: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

# Receives the amount of work done and a short note.
Show = Callable[[int, str], None]


class PhaseProgress(Progress):
    """One bar per phase. Use it as a context."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=36),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    @contextmanager
    def phase(self, text: str, total: int | None) -> Iterator[Show]:
        """Yields a function that moves the bar of this phase."""
        task = self.add_task(text, total=total, note="")
        if not self.console.is_terminal:
            self.console.print(f"{text} ...")
        started = time.monotonic()
        yield lambda done, note: self.update(task, completed=done, note=note)
        self.update(task, completed=total or 1, total=total or 1, note="done")
        if not self.console.is_terminal:
            self.console.print(f"{text}: done in {time.monotonic() - started:.1f} s")
