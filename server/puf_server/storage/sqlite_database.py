"""The state of a federation in SQLite, for one process that serves it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from puf_common.audit_chain import AuditEntry, Head
from puf_common.errors import Mismatch, StorageCorrupted
from puf_server.core.state.state import AuditNote, State
from puf_server.failpoints import hit
from puf_server.storage import database, federation_file, migrations, rows
from puf_server.storage.durable import unwritten
from puf_server.storage.state_database import IDENTITY, OneProcess
from puf_server.storage.state_rows import MANY, difference, state_of

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER) WITHOUT ROWID;
CREATE TABLE members (id TEXT PRIMARY KEY, body TEXT NOT NULL, crc INTEGER) WITHOUT ROWID;
CREATE TABLE tickets (id TEXT PRIMARY KEY, body TEXT NOT NULL, crc INTEGER) WITHOUT ROWID;
CREATE TABLE models (id INTEGER PRIMARY KEY, body TEXT NOT NULL, crc INTEGER);
CREATE TABLE records (id INTEGER PRIMARY KEY, body TEXT NOT NULL, crc INTEGER);
CREATE TABLE history (id TEXT PRIMARY KEY, body TEXT NOT NULL, crc INTEGER) WITHOUT ROWID;
CREATE TABLE audit (seq INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL, facts TEXT NOT NULL, hash BLOB NOT NULL);
"""


class SqliteAuditLog:
    """The audit log as one connection sees it."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def head(self) -> Head:
        return database.audit_head(self._db)

    def lines(self, *events: str) -> Iterator[AuditEntry]:
        return database.audit_lines(self._db, *events)

    def after(self, number: int, limit: int) -> list[AuditEntry]:
        return database.audit_after(self._db, number, limit)

    def page(self, *, before: int, limit: int, event: str = "", text: str = "", number: int = 0) -> list[AuditEntry]:
        return database.audit_page(self._db, before=before, limit=limit, event=event, text=text, number=number)


class SqliteDatabase(OneProcess):
    """One open database file."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._durable = durable
        self.db = database.connect(path, durable=durable)

    @classmethod
    def create(cls, path: Path, meta: Mapping[str, str | None], state: State, *, durable: bool = True) -> None:
        """Makes the database of a new federation."""
        with closing(cls(path, durable=durable)) as made:
            made.db.executescript(_TABLES)
            made.put_meta({"schema": str(migrations.SCHEMA), **meta})
            made.save(None, state)

    @classmethod
    def open(cls, path: Path, identity: Mapping[str, Any], *, durable: bool = True) -> SqliteDatabase:
        """Opens the database, rewrites an older version, and verifies pages and records."""
        with ExitStack() as stack:
            opened = stack.enter_context(closing(cls(path, durable=durable)))
            with database.readable(path):
                database.check_pages(opened.db, path)
                opened._migrate(identity)
                for table in migrations.TABLES:
                    rows.verify(table, opened.db.execute(f"SELECT * FROM {table}"), path)  # noqa: S608
            stack.pop_all()
        return opened

    def _migrate(self, identity: Mapping[str, Any]) -> None:
        """Rewrites the state of an older version in one transaction. Refuses a state that this version cannot read."""
        found, directory = self.meta("schema") or "none", self._path.parent
        if found == str(migrations.SCHEMA):
            return
        if found.isdecimal() and migrations.OLDEST <= int(found) < migrations.SCHEMA:
            facts: dict[str, Any] = {"from": int(found), "to": migrations.SCHEMA}
            with self.db:
                self.db.execute("BEGIN IMMEDIATE")
                # Directories of the first versions have no such table.
                self.db.execute(
                    "CREATE TABLE IF NOT EXISTS history (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID"
                )
                migrations.upgrade(self.db, int(found))
                if found == "1":
                    # Schema 1 stored no identity. Accept the configuration as stated, once.
                    self._put("meta", [(IDENTITY, json.dumps(identity))])
                    facts["fingerprint"] = federation_file.fingerprint(identity)
                self._put("meta", [("schema", str(migrations.SCHEMA))])
                database.append_audit(self.db, time.time(), "federation.migrated", facts)
            return
        if found.isdecimal() and int(found) > migrations.SCHEMA:
            raise Mismatch(
                f"{directory} has state of version {found}, this server reads {migrations.SCHEMA}: a newer PUF wrote "
                "it; serve it with that version, or restore a backup from before the upgrade"
            )
        raise Mismatch(
            f"{directory} has state of version {found}, this server reads {migrations.OLDEST} to "
            f"{migrations.SCHEMA}: serve it with the PUF that made it, or restore a backup"
        )

    def load(self) -> State:
        with database.readable(self._path):
            meta = dict(self.db.execute("SELECT key, value FROM meta"))
            many = {table: self.db.execute(f"SELECT id, body FROM {table} ORDER BY id") for table in MANY}  # noqa: S608
            return state_of(meta, many, self._path)

    def newer(self, known: State) -> State | None:
        """None: the lock of the directory admits one process."""
        return None

    def save(self, before: State | None, after: State, now: float | None = None, fold: int | None = None) -> bool:
        changed = difference(before, after, now)
        if changed is None and not after.notes:
            return False

        def write() -> None:
            if changed is not None:
                for table, put in changed.put.items():
                    self._put(table, put)
                for table, keys in changed.deleted.items():
                    self.db.executemany(f"DELETE FROM {table} WHERE id = ?", [(key,) for key in keys])  # noqa: S608
            hit("audit.write")
            for note in after.notes:
                database.append_audit(self.db, note.at, note.event, note.facts)

        self._transaction(write)
        return True

    def _transaction(self, write: Callable[[], None]) -> None:
        try:
            with self.db:
                self.db.execute("BEGIN IMMEDIATE")
                write()
        except sqlite3.DatabaseError as error:
            raise database.unsaved(error, self._path) from error
        except OSError as error:
            raise unwritten(error, "the change") from error

    def _put(self, table: str, put: list[tuple[Any, str]]) -> None:
        rows.put(self.db, table, put)

    def meta(self, key: str) -> str | None:
        with database.readable(self._path):
            return SqliteAuditLog(self.db).meta(key)

    def put_meta(self, values: Mapping[str, str | None], note: AuditNote | None = None) -> None:
        def write() -> None:
            self._put("meta", [(key, value) for key, value in values.items() if value is not None])
            gone = [(key,) for key, value in values.items() if value is None]
            self.db.executemany("DELETE FROM meta WHERE key = ?", gone)
            if note is not None:
                database.append_audit(self.db, note.at, note.event, note.facts)

        self._transaction(write)

    @contextmanager
    def audit_log(self) -> Iterator[SqliteAuditLog]:
        with database.readable(self._path), database.reading(self._path) as db:
            yield SqliteAuditLog(db)

    def verify(self) -> None:
        problem = self.db.execute("PRAGMA integrity_check").fetchone()
        if problem != ("ok",):
            raise StorageCorrupted(f"the database in the backup is damaged: {problem[0] if problem else 'unreadable'}")

    def never_wait(self) -> None:
        """From now on no statement waits for another process, and no transaction copies the log into the database."""
        self.db.execute("PRAGMA busy_timeout = 0")
        self.db.execute("PRAGMA wal_autocheckpoint = 0")

    def log_bytes(self) -> int:
        try:
            return self._log.stat().st_size
        except FileNotFoundError:
            return 0

    def purge(self) -> bool:
        return database.purge_free_pages(self._path, durable=self._durable)

    def close(self) -> None:
        self.db.close()
