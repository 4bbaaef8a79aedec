"""Stored state of older versions, rewritten into the records of this version.

The functions know JSON rows only: a record type may change later without a change here. Schemas:

    1    the database does not name its federation
    2    version 0.1.0
    3    rows without checksums
    4    this version
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from puf_common.errors import StorageCorrupted
from puf_server.storage import rows

SCHEMA = 4
OLDEST = 1

Row = dict[str, Any]

TABLES = ("meta", "members", "tickets", "models", "records", "history")

# Keys of `meta`.
_META = {"survey": "evaluation", "surveys": "evaluations", "episode": "job"}
# Fields of members, rounds, jobs and recoveries.
_FIELDS = {"allowed": "approved", "slots": "assignments", "memo": "method_state", "surveyed": "evaluated"}
# Fields of a ticket, by the record that holds them now.
_REQUEST = (
    "scope", "mode", "flip", "kappa", "eta_u", "epochs", "forget_samples", "retain_samples", "reference", "filed_at",
    "received_at", "filed_by", "weight",
)  # fmt: skip
_APPLIED = (
    "method", "scale", "version_before", "version_unlearned", "score_before", "score_unlearned", "score_clients",
    "recovery_rounds", "deleted_records", "deleted_bytes",
)  # fmt: skip
_OUTCOME = ("completed_at", "recovered", "version_recovered", "score_recovered", "deleted_versions")
_TICKET = ("id", "client", "membership", "deadline_at", "state", "history", "attempts", "reopened")
_STEP = ("base", "assignments", "combine", "denominator", "plain", "last", "method_state")


def upgrade(db: sqlite3.Connection, found: int) -> None:
    """Rewrites a database of schema `found`. The caller opens the transaction."""
    if found < 3:
        _rename(db)
    for table in TABLES:
        db.execute(f"ALTER TABLE {table} ADD COLUMN crc INTEGER")
        rows.put(db, table, [(key, body) for key, body, _ in db.execute(f"SELECT * FROM {table}").fetchall()])  # noqa: S608


def _rename(db: sqlite3.Connection) -> None:
    """Gives records and fields of schema 2 their new names."""
    for old, new in _META.items():
        db.execute("UPDATE meta SET key = ? WHERE key = ?", (new, old))
    for key, change in {"round": _round, "job": _renamed, "recovery": _on_hold}.items():
        for (body,) in db.execute("SELECT value FROM meta WHERE key = ? AND value != 'null'", (key,)).fetchall():
            db.execute("UPDATE meta SET value = ? WHERE key = ?", (_changed(key, body, change), key))
    for table, change in {"members": _on_hold, "tickets": _ticket}.items():
        stored = db.execute(f"SELECT id, body FROM {table}").fetchall()  # noqa: S608
        changed = [(_changed(f"{table}/{key}", body, change), key) for key, body in stored]
        db.executemany(f"UPDATE {table} SET body = ? WHERE id = ?", changed)  # noqa: S608


def _changed(record: str, body: str, change: Callable[[Row], Row]) -> str:
    try:
        return json.dumps(change(json.loads(body)), separators=(",", ":"), allow_nan=False)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageCorrupted(
            f"the record {record} cannot be read: {error!r}; restore a backup", record=record
        ) from None


def _on_hold(row: Row) -> Row:
    """A member or a recovery, which the operator may hold."""
    return _renamed(row) | {"on_hold": row.get("held") or None}


def _ticket(row: Row) -> Row:
    """Splits a ticket into what was asked, how it was applied and how it ended. Empty values become null."""
    request = {"key": row["request_key"], **_part(row, _REQUEST)}
    if row["scope"] == "client":
        request |= {"forget_samples": None, "retain_samples": None}
    ticket = {**_part(row, _TICKET), "request": request, "on_hold": row.get("held") or None}
    ticket |= {name: row.get(name) or None for name in ("not_before", "fallback", "taken_over")}
    if row.get("applied_at"):
        evidence = row.get("evidence", {})
        measured = {v: {"forget": sums, **evidence.get(v, {})} for v, sums in row.get("measurements", {}).items()}
        ticket["applied"] = {**_part(row, _APPLIED), "round": row["applied_round"], "at": row["applied_at"]}
        ticket["applied"] |= {"scale": row["scale"] or None, "measurements": measured}
    if row.get("completed_at"):
        ticket["outcome"] = _part(row, _OUTCOME)
    return ticket


def _round(row: Row) -> Row:
    """Moves what a round does into its step."""
    row = _renamed(row)
    step = {**_part(row, _STEP), "stream": row.get("stream") or None, "into": row.get("into") or None}
    rest = {name: value for name, value in row.items() if name not in (*_STEP, "stream", "into")}
    return rest | {"step": step, "method": row.get("method") or None, "declined_at": row.get("declined_at") or None}


def _part(row: Row, names: Sequence[str]) -> Row:
    return {name: row[name] for name in names if name in row}


def _renamed(row: Row) -> Row:
    return {_FIELDS.get(key, key): value for key, value in row.items()}
