"""The state of a federation in PostgreSQL, for several processes that serve it.

Every commit names the version that it has read and fails where another process has committed since. A lost connection
leaves no doubt: before anything else is written, a new connection finds out whether the last commit was stored.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import psycopg

from puf_common import audit_chain
from puf_common.audit_chain import AuditEntry, Head
from puf_common.errors import Mismatch, Unavailable
from puf_server.core.state.state import AuditNote, State
from puf_server.failpoints import hit
from puf_server.storage import migrations, postgres_rows, postgres_tables
from puf_server.storage.postgres_audit import PostgresAuditLog
from puf_server.storage.postgres_connection import Address, translated
from puf_server.storage.postgres_rows import Keys, Rows
from puf_server.storage.postgres_servers import Servers, channel
from puf_server.storage.postgres_tables import FOLD_LOCK, Connection
from puf_server.storage.state_database import DatabaseBusy, StateMoved, Watcher
from puf_server.storage.state_rows import MANY, difference, state_of, updated

# Seconds in which a lost connection may come back while a commit is in doubt.
_DOUBT_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_LOCK_TIMEOUT = "200ms"


class PostgresDatabase:
    """One process's connections to the database. `open` for a process that serves, `create` for a new federation."""

    def __init__(self, address: str) -> None:
        self._address = Address(address)
        # None in a process that does not serve.
        self._servers: Servers | None = None
        self.owner = ""
        self._db: Connection | None = None
        self._channel = ""
        # The version and the audit log's head that this process knows.
        self._version = 0
        self._head = audit_chain.EMPTY
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
                postgres_rows.advance(db, 0, "", shrinks=False)
                postgres_rows.write(db, 1, put, {}, made._entries(state.notes))

    @classmethod
    def open(cls, address: str) -> PostgresDatabase:
        """Opens the database for a process that serves. Rewrites older tables, and verifies all records.

        Waits while another process recovers the state. Raises AlreadyServed where an older PUF serves.
        """
        opened = cls(address)
        try:
            opened._servers = servers = Servers(address)
            opened._address, opened.owner = servers.address, servers.id
            servers.join()
            db = opened._connection()
            opened._address.warn(db)
            with translated(opened._address.shown):
                with db.transaction():
                    found = postgres_tables.migrate(db)
                servers.measure_clock()
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
        """The connection for changes."""
        if self._db is None or self._db.closed:
            self._db = self._address.connect()
        return self._db

    @property
    def joined(self) -> bool:
        return self._servers is not None and not self._servers.alone

    def watch(self, watcher: Watcher) -> None:
        assert self._servers is not None
        self._servers.watch(watcher)

    def is_gone(self, owner: str) -> bool:
        return self._servers is not None and owner != self.owner and self._servers.exchange.is_gone(owner)

    def stop_others(self) -> bool:
        with self._transaction() as db:
            db.execute("UPDATE puf_servers SET stop = true")
            db.execute("SELECT pg_notify(%s, '')", (channel(db),))
        return True

    def wall_clock(self, own: Callable[[], float]) -> Callable[[], float]:
        """The database's clock."""
        return own if self._servers is None else self._servers.exchange.wall

    def begin_fold(self) -> int | None:
        with self._transaction() as db:
            if db.execute(f"SELECT pg_try_advisory_lock({FOLD_LOCK})").fetchone() != (True,):
                return None
            row = db.execute("UPDATE puf_head SET folds = folds + 1 RETURNING folds").fetchone()
            assert row is not None
            return int(row[0])

    def end_fold(self) -> None:
        # A connection that was lost has lost the lock.
        if self._db is not None and not self._db.closed:
            with self._transaction() as db:
                db.execute(f"SELECT pg_advisory_unlock({FOLD_LOCK})")

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
            version, _ = postgres_rows.versions(db)
            found, head = postgres_rows.rows_since(db, 0, self._address.shown), PostgresAuditLog(db).head()
        tables = {table: sorted(found.get(table, [])) for table in MANY}
        state = state_of(dict(found.get("meta", ())), tables, self._address.shown)
        self._version, self._head = version, head
        return state

    def newer(self, known: State) -> State | None:
        if not self._moved():
            return None
        with self._transaction("ISOLATION LEVEL REPEATABLE READ, READ ONLY") as db:
            version, shrunk = postgres_rows.versions(db)
            if version == self._version:
                return None
            found = postgres_rows.rows_since(db, self._version, self._address.shown)
            keys = postgres_rows.all_keys(db) if shrunk > self._version else None
            head = PostgresAuditLog(db).head()
        state = updated(known, dict(found.get("meta", ())), found, keys, self._address.shown)
        self._version, self._head = version, head
        return state

    def _moved(self) -> bool:
        """Whether another process has committed. One statement, because this is asked very often."""
        db = self._connection()
        try:
            with translated(self._address.shown):
                return postgres_rows.versions(db)[0] != self._version
        except DatabaseBusy:
            db.close()
            raise

    def save(self, before: State | None, after: State, now: float | None = None, fold: int | None = None) -> bool:
        changed = difference(before, after, now)
        if changed is None and not after.notes:
            return False
        self._commit(changed.put if changed else {}, changed.deleted if changed else {}, after.notes, fold)
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

    def _commit(self, put: Rows, deleted: Keys, notes: Sequence[AuditNote], fold: int | None = None) -> None:
        """Writes in one transaction. Raises StateMoved where the state is newer than this process knows."""
        entries, mark, known = self._entries(notes), secrets.token_hex(8), self._version
        # Where this fails nothing was sent, and there is no doubt.
        db = self._connection()
        if not self._channel:
            with translated(self._address.shown):
                self._channel = channel(db)
        try:
            with self._transaction() as db:
                postgres_rows.advance(db, known, mark, shrinks=any(deleted.values()), fold=fold)
                postgres_rows.write(db, known + 1, put, deleted, entries)
                db.execute("SELECT pg_notify(%s, %s)", (self._channel, self.owner))
                hit("audit.write")
        except StateMoved:
            raise
        except DatabaseBusy as error:
            if not self._was_stored(known, mark):
                raise StateMoved(error.message) from None
        self._version = known + 1
        if entries:
            self._head = Head(entries[-1].number, entries[-1].hash)

    def _was_stored(self, known: int, mark: str) -> bool:
        """Whether a commit was stored whose connection was lost. False: it was not and never will be."""
        give_up = time.monotonic() + _DOUBT_SECONDS
        while True:
            try:
                with self._transaction() as db:
                    found = postgres_rows.stored(db, known, mark)
                    if found is not None:
                        return found
                    error = DatabaseBusy("the connection to the database was lost for a long time")
                    give_up = 0.0
            except DatabaseBusy as lost:
                error = lost
            if time.monotonic() > give_up:
                raise Unavailable(
                    f"{error.message}; whether the change was stored is not known: look at the state, then try again"
                )
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
            postgres_rows.rows_since(db, 0, self._address.shown)

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
        if self._servers is not None:
            self._servers.end()
        for db in (self._db, self._reader):
            if db is not None:
                db.close()
