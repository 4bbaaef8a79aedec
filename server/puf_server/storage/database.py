"""The SQLite database of a federation: connections, errors, purging, and the audit log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from puf_common import audit_chain
from puf_common.errors import PufError, StorageCorrupted, Unavailable
from puf_server.storage.durable import end_process
from puf_server.storage.state_database import DatabaseBusy

_ENTRIES = "SELECT seq, at, event, facts, hash FROM audit"


def connect(path: Path, timeout: float = 5.0, *, durable: bool = True) -> sqlite3.Connection:
    """An open database. `timeout` is how many seconds a statement waits for another process.

    Without `durable` no transaction waits for the disk: a power cut can damage the database.
    """
    db = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        db.execute("PRAGMA secure_delete = ON")
        # On macOS a plain fsync leaves data in the drive's cache.
        db.execute("PRAGMA fullfsync = ON")
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        db.close()
        raise StorageCorrupted(f"{path} cannot be opened: {error}") from None
    return db


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of its own that sees one consistent state of the database while others write."""
    with closing(connect(path)) as db:
        db.execute("BEGIN")
        yield db


def purge_free_pages(path: Path, *, durable: bool = True) -> bool:
    """Removes overwritten records from the write-ahead log. False: another process reads an older state; try again later.

    `secure_delete` overwrites pages of the database itself; the log keeps their older versions until it is truncated. This
    uses a connection of its own and never waits, so that no caller of the engine waits for a reader.
    """
    with closing(connect(path, timeout=0.0, durable=durable)) as db:
        # The first checkpoint copies pages without the writer's lock and leaves little for the second one.
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns an error of the database into one that names the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        # The name of a table or the text of an error.
        raise damaged(path, error) from None
    except sqlite3.DatabaseError as error:
        # The low byte is the kind of an error.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR):
            raise Unavailable(f"{path} cannot be read now: {error}") from None
        raise damaged(path, error) from None


def damaged(path: Path, why: object) -> StorageCorrupted:
    return StorageCorrupted(f"{path} is damaged and cannot be read: {why}; restore a backup")


def check_pages(db: sqlite3.Connection, path: Path) -> None:
    """Raises StorageCorrupted where a page of the database is damaged."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise damaged(path, found)


def unsaved(error: sqlite3.DatabaseError, path: Path) -> PufError:
    """The error for a caller whose transaction was rolled back. A failed sync ends the process."""
    if not isinstance(error, sqlite3.OperationalError):
        return damaged(path, error)
    if error.sqlite_errorcode in (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC):
        end_process("state.db", error)
    if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
        return DatabaseBusy("the state cannot be written: another process writes to the database for a long time")
    if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
        return Unavailable("the server's disk is full: nothing was changed; try again when there is room")
    return Unavailable(f"the state cannot be written: {error}")


def audit_head(db: sqlite3.Connection) -> audit_chain.Head:
    row = db.execute("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
    return audit_chain.Head(*row) if row else audit_chain.EMPTY


def append_audit(db: sqlite3.Connection, at: float, event: str, facts: Mapping[str, Any]) -> None:
    """Appends one entry, chained to the last one. Needs a transaction that began IMMEDIATE: other processes append, too."""
    line = audit_chain.append(audit_head(db), at, event, facts)
    db.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?)", (line.number, line.at, line.event, line.facts, line.hash))


def audit_after(db: sqlite3.Connection, number: int, limit: int) -> list[audit_chain.AuditEntry]:
    """The entries after this number in order, at most `limit`."""
    rows = db.execute(f"{_ENTRIES} WHERE seq > ? ORDER BY seq LIMIT ?", (number, limit))
    return [audit_chain.AuditEntry(*row) for row in rows]


def audit_page(
    db: sqlite3.Connection, *, before: int, limit: int, event: str = "", text: str = "", number: int = 0
) -> list[audit_chain.AuditEntry]:
    """Entries below `before` (0: all), newest first: events that begin with `event`, facts that contain `text`.

    With a round's `number` only entries about that round.
    """
    like = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    rows = db.execute(
        f"{_ENTRIES} WHERE (? = 0 OR seq < ?) AND substr(event, 1, ?) = ? AND facts LIKE ? ESCAPE '\\' "
        "AND (? = 0 OR json_extract(facts, '$.round') = ?) ORDER BY seq DESC LIMIT ?",
        (before, before, len(event), event, f"%{like}%", number, number, limit),
    )
    return [audit_chain.AuditEntry(*row) for row in rows]


def audit_lines(db: sqlite3.Connection, *events: str) -> Iterator[audit_chain.AuditEntry]:
    """The entries of the log in order; with `events` only entries of these."""
    wanted = f"WHERE event IN ({','.join('?' * len(events))})" if events else ""
    for row in db.execute(f"{_ENTRIES} {wanted} ORDER BY seq", events):
        yield audit_chain.AuditEntry(*row)
