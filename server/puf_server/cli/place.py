"""Where a federation is: its directory, the database that holds its state, and the object store that holds its files."""

from __future__ import annotations

import os
from pathlib import Path

from puf_common.errors import Mismatch, UsageError

METAVAR = "DIR|URL"
FILES_HELP = (
    "with --state postgresql://...: directory of models, updates and keys, or s3://BUCKET/PREFIX of models and updates"
)
KEYS_HELP = "with --files s3://...: local directory of keys, tokens and federation.json"
_OBJECTS = "s3://"
_SCHEMES = ("postgresql://", "postgres://")


def is_address(state: str) -> bool:
    return state.startswith(_SCHEMES)


def objects(files: str) -> str:
    """The address of files in an object store; empty: `files` is a directory."""
    if not files.startswith(_OBJECTS):
        return ""
    from puf_server.storage.object_store import address

    bucket, prefix = address(files)
    return f"{_OBJECTS}{bucket}/{prefix}".rstrip("/")


def place(state: str, files: str, keys: Path | None = None, *, new: bool = False) -> tuple[Path, str]:
    """The directory of a federation and the address of its database; without an address the directory holds it.

    Unless the federation is new, its files must be where `files` says.
    """
    if not is_address(state):
        if files or keys:
            flag = "--files" if files else "--keys"
            raise UsageError(f"{flag} belongs to --state postgresql://...; the state in {state} has its files there")
        return Path(state), ""
    if not files:
        raise UsageError("a state in PostgreSQL needs --files, the directory of models, updates and keys or s3://...")
    _require_driver()
    url = objects(files)
    if not url:
        if keys is not None:
            raise UsageError(f"--keys belongs to --files s3://...; the keys are in {files}")
        return Path(files), state
    if keys is None:
        raise UsageError("--files s3://... needs --keys DIR, the local directory of keys, tokens and federation.json")
    from puf_server.storage import federation_file, object_store

    object_store.require_library()
    if not new and (stored := federation_file.objects(keys)) != url:
        raise Mismatch(f"the files of the federation in {keys} are in {stored or keys}, not in {url}")
    return keys, state


def directory(state: str | os.PathLike[str]) -> Path:
    """The directory that a command names that needs no database."""
    if is_address(os.fspath(state)):
        raise UsageError("this command reads files only: give the directory of --keys or --files as --state")
    return Path(state)


def _require_driver() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise UsageError(f"a state in PostgreSQL needs psycopg ({error}); install puf-fl[postgres]") from None
