"""Stored state of older versions, rewritten into the records of this version.

The functions know JSON rows only: a record type may change later without a change here. Schemas:

    1    the database does not name its federation
    2    version 0.1.0
    3    this version
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["OLDEST", "SCHEMA", "upgrade"]

SCHEMA = 3
OLDEST = 1

Row = dict[str, Any]

# Keys of `meta`.
_META = {"survey": "evaluation", "surveys": "evaluations", "episode": "job"}
_MEMBER = {"held": "on_hold", "allowed": "approved"}
_TICKET = {"held": "on_hold"}
_ROUND = {"slots": "assignments", "memo": "method_state"}
_JOB = {"memo": "method_state"}
_RECOVERY = {"surveyed": "evaluated", "held": "on_hold"}


def upgrade(db: sqlite3.Connection) -> None:
    """Rewrites a database of schema 2. The caller opens the transaction."""
    for old, new in _META.items():
        db.execute("UPDATE meta SET key = ? WHERE key = ?", (new, old))
    singles = {"round": _round, "job": _job, "recovery": _recovery}
    for key, change in singles.items():
        for (body,) in db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchall():
            if (row := json.loads(body)) is not None:
                db.execute("UPDATE meta SET value = ? WHERE key = ?", (_text(change(row)), key))
    for table, change in {"members": _member, "tickets": _ticket}.items():
        _rewrite(db, table, change)


def _rewrite(db: sqlite3.Connection, table: str, change: Callable[[Row], Row]) -> None:
    rows = db.execute(f"SELECT id, body FROM {table}").fetchall()  # noqa: S608
    changed = [(_text(change(json.loads(body))), key) for key, body in rows]
    db.executemany(f"UPDATE {table} SET body = ? WHERE id = ?", changed)  # noqa: S608


def _member(row: Row) -> Row:
    return _renamed(row, _MEMBER)


def _ticket(row: Row) -> Row:
    return _renamed(row, _TICKET)


def _round(row: Row) -> Row:
    return _renamed(row, _ROUND)


def _job(row: Row) -> Row:
    return _renamed(row, _JOB)


def _recovery(row: Row) -> Row:
    return _renamed(row, _RECOVERY)


def _renamed(row: Row, names: Mapping[str, str]) -> Row:
    return {names.get(key, key): value for key, value in row.items()}


def _text(row: Row) -> str:
    return json.dumps(row, separators=(",", ":"), allow_nan=False)
