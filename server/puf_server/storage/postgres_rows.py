"""Rows of the state in PostgreSQL: read those that changed, write the next version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from puf_common.audit_chain import AuditEntry
from puf_server.storage import postgres_audit, rows
from puf_server.storage.postgres_tables import Connection
from puf_server.storage.state_database import FoldLost, StateMoved
from puf_server.storage.state_rows import Row

# Tables with numbers as keys.
_NUMBERED = frozenset({"models", "records"})
# Commits that a process whose connection was lost can find. It looks within seconds.
_REMEMBERED = 10_000
_DELETED_AT_ONCE = 100

Rows = Mapping[str, Sequence[Row]]
Keys = Mapping[str, Sequence[Any]]


def versions(db: Connection) -> tuple[int, int]:
    """The newest version, and the newest one that deleted a row."""
    row = db.execute("SELECT version, shrunk FROM puf_head").fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def rows_since(db: Connection, version: int, where: str) -> dict[str, list[Row]]:
    """The rows that were written after this version, by table. Raises StorageCorrupted for one that is damaged."""
    found: dict[str, list[Row]] = {}
    query = "SELECT kind, id, body, crc FROM puf_rows WHERE version > %s"
    for kind, text, body, crc in db.execute(query, (version,)):
        key = _key(kind, text)
        rows.verify(kind, [(key, body, crc)], where)
        found.setdefault(kind, []).append((key, body))
    return found


def all_keys(db: Connection) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {}
    for kind, text in db.execute("SELECT kind, id FROM puf_rows"):
        found.setdefault(kind, set()).add(_key(kind, text))
    return found


def _key(kind: str, text: str) -> Any:
    return int(text) if kind in _NUMBERED else text


def advance(db: Connection, known: int, mark: str, *, shrinks: bool, fold: int | None = None) -> None:
    """Makes the version after `known` the newest one. `mark` tells this commit from all others.

    Raises StateMoved where `known` is not the newest one, and FoldLost where `fold` is not the newest right to fold.
    """
    query = (
        "UPDATE puf_head SET version = version + 1, shrunk = CASE WHEN %s THEN version + 1 ELSE shrunk END "
        "WHERE version = %s AND (%s::bigint IS NULL OR folds = %s)"
    )
    if db.execute(query, (shrinks, known, fold, fold)).rowcount == 1:
        db.execute("INSERT INTO puf_commits VALUES (%s, %s)", (known + 1, mark))
        if known % _DELETED_AT_ONCE == 0:
            db.execute("DELETE FROM puf_commits WHERE version < %s", (known - _REMEMBERED,))
        return
    if versions(db)[0] == known:
        raise FoldLost("another server folds this round; this one does not commit")
    raise StateMoved("another process has changed the state; it is read again")


def stored(db: Connection, known: int, mark: str) -> bool | None:
    """Whether the commit after `known` with this mark was stored; None: this cannot be known any more.

    False: it was not and never will be. If statements of a lost connection still arrive, they find another version.
    """
    row = db.execute("SELECT version FROM puf_head FOR UPDATE").fetchone()
    assert row is not None
    if row[0] == known:
        advance(db, known, "", shrinks=False)
        return False
    found = db.execute("SELECT mark FROM puf_commits WHERE version = %s", (known + 1,)).fetchone()
    return None if found is None else bool(found[0] == mark)


def write(db: Connection, version: int, put: Rows, deleted: Keys, entries: Sequence[AuditEntry]) -> None:
    """Writes rows and audit entries of this version."""
    written = [(kind, str(k), body, rows.checksum(kind, k, body)) for kind, many in put.items() for k, body in many]
    gone = [(kind, str(key)) for kind, keys in deleted.items() for key in keys]
    with db.pipeline():
        if written:
            kinds, ids, bodies, sums = map(list, zip(*written, strict=True))
            db.execute(
                "INSERT INTO puf_rows SELECT *, %s FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[]) "
                "ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body, crc = excluded.crc, version = excluded.version",
                (version, kinds, ids, bodies, sums),
            )
        if gone:
            kinds, ids = map(list, zip(*gone, strict=True))
            db.execute(
                "DELETE FROM puf_rows USING unnest(%s::text[], %s::text[]) AS gone (kind, id) "
                "WHERE puf_rows.kind = gone.kind AND puf_rows.id = gone.id",
                (kinds, ids),
            )
        if entries:
            postgres_audit.append(db, entries)
