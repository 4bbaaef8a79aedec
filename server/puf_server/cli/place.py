"""Where a federation is: its directory, and the database that holds its state."""

from __future__ import annotations

import os
from pathlib import Path

from puf_common.errors import UsageError

METAVAR = "DIR|URL"
FILES_HELP = "with --state postgresql://...: directory of models, updates and keys"
_SCHEMES = ("postgresql://", "postgres://")


def is_address(state: str) -> bool:
    return state.startswith(_SCHEMES)


def place(state: str, files: Path | None) -> tuple[Path, str]:
    """The directory of a federation and the address of its database; without an address the directory holds it."""
    if is_address(state):
        if files is None:
            raise UsageError("a state in PostgreSQL needs --files DIR, the directory of models, updates and keys")
        _require_driver()
        return files, state
    if files is not None:
        raise UsageError(f"--files belongs to --state postgresql://...; the state in {state} has its files there")
    return Path(state), ""


def directory(state: str | os.PathLike[str]) -> Path:
    """The directory that a command names that needs no database."""
    if is_address(os.fspath(state)):
        raise UsageError("this command reads files only: give the directory of --files as --state")
    return Path(state)


def _require_driver() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise UsageError(f"a state in PostgreSQL needs psycopg ({error}); install puf-fl[postgres]") from None
