"""`puf-server audit`: reads the audit log and verifies its chain, also while a server runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from puf_common import audit_chain
from puf_common.errors import StorageCorrupted, TransferCorrupted, UsageError
from puf_common.receipts.signed_receipt import Receipt
from puf_server.engine.receipts import read_own
from puf_server.storage import federation_file
from puf_server.storage.sqlite_database import SqliteAuditLog
from puf_server.storage.state_database import SIGNING_KEY, AuditLog


def verify(directory: Path, receipts: list[Path], database: str = "") -> tuple[audit_chain.Head, list[Receipt]]:
    """Verifies every entry, and that the log contains the entry of every receipt. Returns the last entry's head."""
    with _read_only(directory, database) as entries:
        shown = [_own(directory, entries, path) for path in receipts]
        head = audit_chain.EMPTY
        try:
            # The newest receipt last: its error states how much is missing.
            for witness in [audit_chain.EMPTY, *sorted((_head(r) for r in shown), key=lambda h: h.number)]:
                head = audit_chain.follow(entries.lines(), witness)
        except sqlite3.DatabaseError as error:
            raise StorageCorrupted(f"{directory / 'state.db'} cannot be read: {error}") from None
    if head == audit_chain.EMPTY:
        raise StorageCorrupted("the audit log is empty; its first entry should be the creation of the federation")
    return head, shown


def show(directory: Path, last: int, database: str = "") -> list[audit_chain.AuditEntry]:
    """The newest entries, oldest first; all of them if `last` is 0."""
    with _read_only(directory, database) as entries:
        lines = list(entries.lines())
    return lines[-last:] if last else lines


@contextmanager
def _read_only(directory: Path, database: str) -> Iterator[AuditLog]:
    """The log at one moment, while a server writes. `database` is the address of a PostgreSQL database."""
    if database:
        from puf_server.storage.postgres_database import PostgresDatabase

        with closing(PostgresDatabase(database)) as opened, opened.audit_log() as entries:
            yield entries
        return
    path = directory / "state.db"
    if not path.exists():
        # Says where the state is.
        federation_file.read(directory)
        raise UsageError(f"{directory} holds no federation")
    with closing(_connected(path)) as db:
        yield SqliteAuditLog(db)


def _connected(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM meta").fetchone()
    except sqlite3.DatabaseError as error:
        db.close()
        if immutable or path.with_name(f"{path.name}-wal").exists():
            raise StorageCorrupted(f"{path} cannot be read: {error}") from None
        # Reading while a server runs needs SQLite's shared memory. A read-only directory without a server has none; its
        # content cannot change, so it is opened as immutable.
        return _connected(path, immutable=True)
    return db


def _own(directory: Path, entries: AuditLog, path: Path) -> Receipt:
    try:
        federation = json.loads((directory / "federation.json").read_bytes())["config"]["id"]
    except (OSError, ValueError, KeyError, TypeError):
        raise StorageCorrupted(f"{directory / 'federation.json'} cannot be read") from None
    key = entries.meta(SIGNING_KEY)
    if key is None:
        raise StorageCorrupted(f"{directory} has not signed a receipt yet")
    try:
        return read_own(path.read_bytes(), federation, bytes.fromhex(key))
    except TransferCorrupted as error:
        raise TransferCorrupted(f"{path}: {error.message}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _head(receipt: Receipt) -> audit_chain.Head:
    return audit_chain.Head(receipt.content.audit.line, bytes.fromhex(receipt.content.audit.hash))
