"""The state of a federation in PostgreSQL.

Every commit names the version that it has read and fails where another process has committed since. A lost connection
leaves no doubt: before anything else is written, a new connection finds out whether the last commit was stored.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from puf_common import audit_chain
from puf_common.audit_chain import AuditEntry, Head
from puf_common.errors import Mismatch, Unavailable
from puf_server.core.state.state import AuditNote, State
from puf_server.failpoints import hit
from puf_server.storage import migrations, postgres_audit, postgres_tables, rows
from puf_server.storage.postgres_audit import PostgresAuditLog
from puf_server.storage.postgres_connection import Address, translated
from puf_server.storage.postgres_serving import Serving
from puf_server.storage.postgres_tables import Connection
from puf_server.storage.state_database import DatabaseBusy, StateMoved
from puf_server.storage.state_rows import MANY, Row, difference, state_of, updated

# Seconds in which a lost connection may come back while a commit is in doubt.
_DOUBT_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_LOCK_TIMEOUT = "200ms"
# Tables with numbers as keys.
_NUMBERED = frozenset({"models", "records"})

Rows = Mapping[str, Sequence[Row]]
Keys = Mapping[str, Sequence[Any]]


class PostgresDatabase:
    """One process's connections to the database. `open` for a process that serves, `create` for a new federation."""

    def __init__(self, address: str) -> None:
        self._address = Address(address)
        self._db: Connection | None = None
        # The version and the audit log's head that this process knows.
        self._version = 0
        self._head = audit_chain.EMPTY
        self._serving: Serving | None = None
        self._reader: Connection | None = None
        self._reading = threading.Lock()

    @classmethod
    def create(cls, address: str, meta: Mapping[str, str | None], state: State) -> None:
        """Makes the tables of a new federation, and its first state, in one transaction."""
        with closing(cls(address)) as made, translated(made._address.shown):
            first = difference(None, state)
            assert first is not None
            facts = {"schema": str(migrations.SCHEMA), **meta}
            put = {**first.put, "meta": [*first.put["meta"], *((k, v) for k, v in facts.items() if v is not None)]}
            db = made._address.connect()
            with closing(db), db.transaction():
                postgres_tables.make(db)
                _advance(db, 0, "", shrinks=False)
                _write(db, 1, put, {}, made._entries(state.notes))

    @classmethod
    def open(cls, address: str) -> PostgresDatabase:
        """Opens the database for the one process that serves. Rewrites older tables, and verifies all records.

        Raises AlreadyServed where another process serves.
        """
        opened = cls(address)
        try:
            opened._serving = Serving(opened._address)
            db = opened._connection()
            opened._address.warn(db)
            with translated(opened._address.shown):
                with db.transaction():
                    found = postgres_tables.migrate(db)
                opened._serving.begin()
                opened.verify()
                opened.load()
                opened._require_schema()
            if found < len(postgres_tables.STEPS):
                facts = {"tables": found, "to": len(postgres_tables.STEPS)}
                opened.put_meta({}, AuditNote(event="federation.migrated", at=time.time(), facts=facts))
        except BaseException:
            opened.close()
            raise
        return opened

    def _require_schema(self) -> None:
        found = self.meta("schema")
        if found != str(migrations.SCHEMA):
            raise Mismatch(
                f"the database {self._address.shown} has state of version {found}, this server reads "
                f"{migrations.SCHEMA}: serve it with the PUF that wrote it"
            )

    def _connection(self) -> Connection:
        """The connection for changes. In a process that serves, a new one takes the lock."""
        if self._db is None or self._db.closed:
            db = self._address.connect()
            try:
                if self._serving is not None:
                    self._serving.lock(db)
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db

    @contextmanager
    def _transaction(self, mode: str = "") -> Iterator[Connection]:
        """A transaction on the connection for changes. A lost connection is dropped and gives DatabaseBusy."""
        db = self._connection()
        try:
            with translated(self._address.shown), db.transaction():
                if mode:
                    db.execute(f"SET TRANSACTION {mode}")
                yield db
        except DatabaseBusy as error:
            if not isinstance(error, StateMoved):
                db.close()
            raise

    def load(self) -> State:
        with self._transaction("ISOLATION LEVEL REPEATABLE READ, READ ONLY") as db:
            version, _ = _versions(db)
            found, head = _rows_since(db, 0, self._address.shown), PostgresAuditLog(db).head()
        tables = {table: sorted(found.get(table, [])) for table in MANY}
        state = state_of(dict(found.get("meta", ())), tables, self._address.shown)
        self._version, self._head = version, head
        return state

    def newer(self, known: State) -> State | None:
        with self._transaction("ISOLATION LEVEL REPEATABLE READ, READ ONLY") as db:
            version, shrunk = _versions(db)
            if version == self._version:
                return None
            found = _rows_since(db, self._version, self._address.shown)
            keys = _keys(db) if shrunk > self._version else None
            head = PostgresAuditLog(db).head()
        state = updated(known, dict(found.get("meta", ())), found, keys, self._address.shown)
        self._version, self._head = version, head
        return state

    def save(self, before: State | None, after: State, now: float | None = None) -> bool:
        changed = difference(before, after, now)
        if changed is None and not after.notes:
            return False
        self._commit(changed.put if changed else {}, changed.deleted if changed else {}, after.notes)
        return True

    def meta(self, key: str) -> str | None:
        with self._transaction() as db:
            return PostgresAuditLog(db).meta(key)

    def put_meta(self, values: Mapping[str, str | None], note: AuditNote | None = None) -> None:
        put = [(key, value) for key, value in values.items() if value is not None]
        gone = [key for key, value in values.items() if value is None]
        self._commit({"meta": put}, {"meta": gone}, () if note is None else (note,))

    def _entries(self, notes: Sequence[AuditNote]) -> list[AuditEntry]:
        """The notes as entries after the last known one."""
        head, entries = self._head, list[AuditEntry]()
        for note in notes:
            entries.append(audit_chain.append(head, note.at, note.event, note.facts))
            head = Head(entries[-1].number, entries[-1].hash)
        return entries

    def _commit(self, put: Rows, deleted: Keys, notes: Sequence[AuditNote]) -> None:
        """Writes in one transaction. Raises StateMoved where the state is newer than this process knows."""
        entries, mark = self._entries(notes), secrets.token_hex(8)
        # Where this fails nothing was sent, and there is no doubt.
        self._connection()
        try:
            with self._transaction() as db:
                if not _advance(db, self._version, mark, shrinks=any(deleted.values())):
                    raise StateMoved("another process has changed the state; it is read again")
                _write(db, self._version + 1, put, deleted, entries)
                hit("audit.write")
        except StateMoved:
            raise
        except DatabaseBusy as error:
            if not self._was_stored(mark):
                raise StateMoved(error.message) from None
        self._version += 1
        if entries:
            self._head = Head(entries[-1].number, entries[-1].hash)

    def _was_stored(self, mark: str) -> bool:
        """Whether a commit was stored whose connection was lost. False: it was not and never will be."""
        give_up = time.monotonic() + _DOUBT_SECONDS
        while True:
            try:
                with self._transaction() as db:
                    row = db.execute("SELECT writer FROM puf_head FOR UPDATE").fetchone()
                    if row == (mark,):
                        return True
                    # If statements of the lost connection still arrive, they find another version.
                    db.execute("UPDATE puf_head SET version = version + 1, writer = ''")
                    return False
            except DatabaseBusy as error:
                if time.monotonic() > give_up:
                    raise Unavailable(
                        f"{error.message}; whether the change was stored is not known: look at the state, then try again"
                    ) from None
            time.sleep(_PAUSE_SECONDS)

    @contextmanager
    def audit_log(self) -> Iterator[PostgresAuditLog]:
        with self._reading, translated(self._address.shown):
            db = self._begun()
            try:
                yield PostgresAuditLog(db)
            finally:
                with translated(self._address.shown):
                    db.rollback()

    def _begun(self) -> Connection:
        """The readers' connection in a new transaction; a new connection where the old one was lost."""
        mode = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        if self._reader is not None:
            try:
                self._reader.execute(mode)
                return self._reader
            except psycopg.OperationalError:
                self._reader.close()
        self._reader = self._address.connect()
        self._reader.execute(mode)
        return self._reader

    def verify(self) -> None:
        """Reads all rows and compares their checksums."""
        with self._transaction() as db:
            _rows_since(db, 0, self._address.shown)

    def never_wait(self) -> None:
        """Does nothing: no other process changes the state."""

    def log_bytes(self) -> int:
        """0: PostgreSQL bounds its log by itself."""
        return 0

    def purge(self) -> bool:
        """Writes the table anew without deleted rows. PostgreSQL's log, standbys and backups keep them for longer."""
        with closing(self._address.connect()) as db, translated(self._address.shown):
            db.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
            try:
                db.execute("VACUUM (FULL) puf_rows")
            except psycopg.errors.LockNotAvailable:
                return False
        return True

    def close(self) -> None:
        if self._serving is not None:
            self._serving.end()
        for db in (self._db, self._reader):
            if db is not None:
                db.close()


def _versions(db: Connection) -> tuple[int, int]:
    row = db.execute("SELECT version, shrunk FROM puf_head").fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def _rows_since(db: Connection, version: int, where: str) -> dict[str, list[Row]]:
    """The rows that were written after this version, by table. Raises StorageCorrupted for one that is damaged."""
    found: dict[str, list[Row]] = {}
    query = "SELECT kind, id, body, crc FROM puf_rows WHERE version > %s"
    for kind, text, body, crc in db.execute(query, (version,)):
        key = _key(kind, text)
        rows.verify(kind, [(key, body, crc)], where)
        found.setdefault(kind, []).append((key, body))
    return found


def _keys(db: Connection) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {}
    for kind, text in db.execute("SELECT kind, id FROM puf_rows"):
        found.setdefault(kind, set()).add(_key(kind, text))
    return found


def _key(kind: str, text: str) -> Any:
    return int(text) if kind in _NUMBERED else text


def _advance(db: Connection, version: int, mark: str, *, shrinks: bool) -> bool:
    """Whether `version` was the newest one. If so, the next one is. `mark` tells this commit from all others."""
    query = (
        "UPDATE puf_head SET version = version + 1, writer = %s, shrunk = CASE WHEN %s THEN version + 1 ELSE shrunk END "
        "WHERE version = %s"
    )
    return db.execute(query, (mark, shrinks, version)).rowcount == 1


def _write(db: Connection, version: int, put: Rows, deleted: Keys, entries: Sequence[AuditEntry]) -> None:
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
