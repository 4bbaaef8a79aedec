"""`puf-server audit`: reads the audit log and verifies its chain, also while a server runs."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from puf_common import audit_chain
from puf_common.errors import StorageCorrupted, TransferCorrupted, UsageError
from puf_common.receipts.signed_receipt import Receipt
from puf_server.engine.receipts import read_own
from puf_server.storage.database import audit_lines


def verify(directory: Path, receipts: list[Path]) -> tuple[audit_chain.Head, list[Receipt]]:
    """Verifies every entry, and that the log contains the entry of every receipt. Returns the last entry's head."""
    with read_only(directory) as db:
        shown = [_own(directory, db, path) for path in receipts]
        head = audit_chain.EMPTY
        try:
            # The newest receipt last: its error states how much is missing.
            for witness in [audit_chain.EMPTY, *sorted((_head(r) for r in shown), key=lambda h: h.number)]:
                head = audit_chain.follow(audit_lines(db), witness)
        except sqlite3.DatabaseError as error:
            raise StorageCorrupted(f"{directory / 'state.db'} cannot be read: {error}") from None
    if head == audit_chain.EMPTY:
        raise StorageCorrupted("the audit log is empty; its first entry should be the creation of the federation")
    return head, shown


def show(directory: Path, last: int) -> list[audit_chain.AuditEntry]:
    """The newest entries, oldest first; all of them if `last` is 0."""
    with read_only(directory) as db:
        lines = list(audit_lines(db))
    return lines[-last:] if last else lines


def read_only(directory: Path) -> closing[sqlite3.Connection]:
    """A read-only connection that sees one consistent state while a server writes."""
    path = directory / "state.db"
    if not path.exists():
        raise UsageError(f"{directory} holds no federation")
    return closing(_connected(path))


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


def _own(directory: Path, db: sqlite3.Connection, path: Path) -> Receipt:
    try:
        federation = json.loads((directory / "federation.json").read_bytes())["config"]["id"]
    except (OSError, ValueError, KeyError, TypeError):
        raise StorageCorrupted(f"{directory / 'federation.json'} cannot be read") from None
    row = db.execute("SELECT value FROM meta WHERE key = 'signing_key'").fetchone()
    if row is None:
        raise StorageCorrupted(f"{directory} has not signed a receipt yet")
    try:
        return read_own(path.read_bytes(), federation, bytes.fromhex(row[0]))
    except TransferCorrupted as error:
        raise TransferCorrupted(f"{path}: {error.message}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _head(receipt: Receipt) -> audit_chain.Head:
    return audit_chain.Head(receipt.content.audit.line, bytes.fromhex(receipt.content.audit.hash))
