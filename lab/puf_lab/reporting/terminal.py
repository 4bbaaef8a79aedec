"""The console of the lab's commands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Width for pipes and files, where rich would assume 80 columns and cut tables.
_WIDTH = 160


def new_console() -> Console:
    """A console without automatic highlighting. Output to a pipe or file is wide enough for every table."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        return Console(highlight=False, width=_WIDTH)
    return console
