"""The state of a federation in its database. Every change is one transaction: changed records and new audit lines."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from puf_common import audit_chain
from puf_common.errors import Mismatch, StorageCorrupted, UsageError
from puf_common.files.private import write_new
from puf_common.receipts.signing_key import SigningKey, fingerprint
from puf_common.tensors.manifest import MODEL, Manifest
from puf_server import plugins
from puf_server.core.config import FederationConfig
from puf_server.core.state.jobs import Recovery, UnlearningJob
from puf_server.core.state.measurements import Evaluation
from puf_server.core.state.members import Member
from puf_server.core.state.models import ModelVersion
from puf_server.core.state.presence import DiskSpace
from puf_server.core.state.rounds import HistoryRecord, Round, RoundRecord
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket
from puf_server.failpoints import hit
from puf_server.storage import federation_file, migrations
from puf_server.storage import rows as records
from puf_server.storage.database import (
    append_audit,
    audit_lines,
    check_pages,
    connect,
    purge_free_pages,
    readable,
    unsaved,
)
from puf_server.storage.durable import DISK, Files, unwritten
from puf_server.storage.layout import KEY_FILE, Layout, history_name
from puf_server.storage.model_files import ModelFiles
from puf_server.storage.orphans import delete_orphans
from puf_server.storage.spool import Spool

plugins.allow()

# Persistent fields of State: scalars and single records go to `meta`, mappings to a table of their own.
_SCALARS = (
    "version",
    "number",
    "attempt",
    "trained",
    "planned",
    "decays",
    "streams",
    "paused",
    "halted",
    "evaluations",
)
_SINGLES: dict[str, TypeAdapter[Any]] = {
    "round": records.adapter(Round),
    "evaluation": records.adapter(Evaluation),
    "job": records.adapter(UnlearningJob),
    "recovery": records.adapter(Recovery),
    "leases": TypeAdapter(dict[str, int]),
}
_MANY: dict[str, TypeAdapter[Any]] = {
    "members": records.adapter(Member),
    "tickets": records.adapter(Ticket),
    "models": records.adapter(ModelVersion),
    "records": records.adapter(RoundRecord),
    "history": records.adapter(HistoryRecord),
}
VOLATILE = frozenset({"stopping", "notes"})
assert {f.name for f in fields(State)} == {*_SCALARS, *_SINGLES, *_MANY, *VOLATILE}


class Store:
    """An open state directory. The caller must not use the database from two threads at the same time."""

    key: SigningKey

    def __init__(
        self, layout: Layout, config: FederationConfig, manifest: Manifest, db: sqlite3.Connection, files: Files
    ) -> None:
        self.layout = layout
        self.directory = layout.directory
        self.config = config
        self.manifest = manifest
        self.db = db
        self.files = files
        self.models = ModelFiles(layout.models, manifest, files)
        self.spool = Spool(layout.spool, files)
        # Held while a server serves the directory.
        self._lock: IO[str] | None = None

    @classmethod
    def open(cls, directory: Path, files: Files = DISK) -> Store:
        """Opens a federation for serving. Raises where another process serves it."""
        config, manifest = federation_file.read(directory)
        layout = Layout(directory)
        with ExitStack() as stack:
            lock = stack.enter_context(layout.lock.open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another server serves {directory}; stop it first") from None
            db = stack.enter_context(closing(connect(layout.database, durable=files.durable)))
            store = cls(layout, config, manifest, db, files)
            store._lock = lock
            with readable(layout.database):
                check_pages(db, layout.database)
                store._migrate()
                records.verify(db, migrations.TABLES, layout.database)
                stored = json.loads(store._meta("identity") or "{}")
                federation_file.require_same(stored, federation_file.identity(config, manifest), directory)
                store.key = store._signing_key()
            stack.pop_all()
        return store

    def disk_space(self) -> DiskSpace | None:
        return DiskSpace(free=shutil.disk_usage(self.directory).free, update=self.manifest.nbytes(MODEL))

    def await_receipts(self, wanted: bool) -> None:
        """Stores whether this state comes from a backup and the operator has not shown the receipts issued since."""
        with self.db:
            if wanted:
                self.put_meta("awaits_receipts", "yes")
            else:
                self.db.execute("DELETE FROM meta WHERE key = 'awaits_receipts'")

    @property
    def awaits_receipts(self) -> bool:
        return self._meta("awaits_receipts") is not None

    def _signing_key(self) -> SigningKey:
        """The federation's signing key. A directory from before there were receipts gets one here."""
        path = self.layout.signing_key
        known = self._meta("signing_key")
        if known is None and not path.exists():
            write_new(path, SigningKey.generate().to_pem(), files=self.files)
        try:
            key = SigningKey.from_pem(path.read_bytes())
        except FileNotFoundError:
            raise StorageCorrupted(
                f"{path} is missing: receipts cannot be signed; bring it back from a backup"
            ) from None
        if known is None:
            with self.db:
                self.db.execute("BEGIN IMMEDIATE")
                self.put_meta("signing_key", key.public.hex())
                append_audit(self.db, time.time(), "federation.key_made", {"key": fingerprint(key.public)})
        elif known != key.public.hex():
            ours = fingerprint(bytes.fromhex(known))
            raise Mismatch(f"{path} holds another key ({fingerprint(key.public)}) than this federation's ({ours})")
        return key

    def _migrate(self) -> None:
        """Rewrites the state of an older version in one transaction. Refuses a state that this version cannot read."""
        found = self._meta("schema") or "none"
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
                    identity = federation_file.identity(self.config, self.manifest)
                    self.put_meta("identity", json.dumps(identity))
                    facts["fingerprint"] = federation_file.fingerprint(identity)
                self.put_meta("schema", str(migrations.SCHEMA))
                append_audit(self.db, time.time(), "federation.migrated", facts)
            return
        if found.isdecimal() and int(found) > migrations.SCHEMA:
            raise Mismatch(
                f"{self.directory} has state of version {found}, this server reads {migrations.SCHEMA}: a newer PUF wrote "
                "it; serve it with that version, or restore a backup from before the upgrade"
            )
        raise Mismatch(
            f"{self.directory} has state of version {found}, this server reads {migrations.OLDEST} to "
            f"{migrations.SCHEMA}: serve it with the PUF that made it, or restore a backup"
        )

    def _meta(self, key: str) -> str | None:
        row = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        self.db.close()
        if self._lock is not None:
            self._lock.close()

    def load(self) -> State:
        with readable(self.layout.database):
            return self._load()

    def _load(self) -> State:
        where = self.layout.database
        meta: dict[str, str] = dict(self.db.execute("SELECT key, value FROM meta"))
        # A field that an older version did not have gets its default.
        values: dict[str, Any] = {name: json.loads(meta[name]) for name in _SCALARS if name in meta}
        # Older versions counted every round.
        values.setdefault("decays", values.get("number", 0))
        values |= {
            name: records.read(adapter, meta[name], name, where) for name, adapter in _SINGLES.items() if name in meta
        }
        for table, adapter in _MANY.items():
            rows = self.db.execute(f"SELECT id, body FROM {table} ORDER BY id")  # noqa: S608
            values[table] = {key: records.read(adapter, body, f"{table}/{key}", where) for key, body in rows}
        return State(**values)

    def never_wait(self) -> None:
        """From now on no statement waits for another process, and no transaction copies the log into the database."""
        self.db.execute("PRAGMA busy_timeout = 0")
        self.db.execute("PRAGMA wal_autocheckpoint = 0")

    def last_time(self) -> float | None:
        """The time that a server recorded last; None in directories of older versions."""
        stored = self._meta("time")
        return None if stored is None else float(stored)

    def record_time(self, now: float) -> bool:
        """Stores the federation's time. Always writes."""
        self._transaction(lambda: self.put_meta("time", repr(now)))
        return True

    def save(self, before: State | None, after: State) -> bool:
        """Writes the difference between two states and the new audit lines in one transaction. False: there is none."""
        changed = {
            name
            for name in (*_SCALARS, *_SINGLES, *_MANY)
            if before is None or getattr(before, name) is not getattr(after, name)
        }
        if not changed and not after.notes:
            return False

        def write() -> None:
            for name in changed & set(_SCALARS):
                self.put_meta(name, json.dumps(getattr(after, name), allow_nan=False))
            for name in changed & _SINGLES.keys():
                self.put_meta(name, records.text(_SINGLES[name], name, getattr(after, name)))
            for table in changed & _MANY.keys():
                self._put_rows(table, getattr(before, table) if before else {}, getattr(after, table))
            hit("audit.write")
            for note in after.notes:
                append_audit(self.db, note.at, note.event, note.facts)

        self._transaction(write)
        return True

    def _transaction(self, write: Callable[[], None]) -> None:
        try:
            with self.db:
                self.db.execute("BEGIN IMMEDIATE")
                write()
        except sqlite3.DatabaseError as error:
            raise unsaved(error, self.layout.database) from error
        except OSError as error:
            raise unwritten(error, "the change") from error

    def put_meta(self, key: str, value: str) -> None:
        records.put(self.db, "meta", [(key, value)])

    def _put_rows(self, table: str, before: Any, after: Any) -> None:
        rows = [
            (key, records.text(_MANY[table], f"{table}/{key}", record))
            for key, record in after.items()
            if before.get(key) is not record
        ]
        records.put(self.db, table, rows)
        self.db.executemany(f"DELETE FROM {table} WHERE id = ?", [(k,) for k in before if k not in after])  # noqa: S608

    def log_bytes(self) -> int:
        """The length of the database's write-ahead log."""
        try:
            return self.layout.log.stat().st_size
        except FileNotFoundError:
            return 0

    def purge_free_pages(self) -> bool:
        return purge_free_pages(self.layout.database, durable=self.files.durable)

    def require_files(self, state: State) -> None:
        """Raises where a file that a record of `state` names is missing or damaged. Updates are not checked."""
        for record in state.history.values():
            path = self.layout.history / history_name(record)
            if record.digest and not path.exists():
                raise StorageCorrupted(f"{path} is missing; bring it back from a backup")
        self.models.require(state)

    def damaged_updates(self, current: Round | None) -> dict[str, str]:
        return self.spool.damaged(current)

    def audit_fault(self) -> str:
        """The first entry of the audit log that is not as it was written; empty if there is none."""
        try:
            with readable(self.layout.database):
                audit_chain.follow(audit_lines(self.db))
        except StorageCorrupted as error:
            return error.message
        return ""

    def delete_update(self, current: Round, key: str) -> None:
        self.spool.delete(current, key)

    def delete_orphans(self, newest: Callable[[], State], *, everything: bool = False) -> None:
        delete_orphans(self.layout, self.files, newest, everything=everything)


def key_fingerprint(directory: Path) -> str:
    """The fingerprint of the key that signs receipts. The operator publishes it."""
    return fingerprint(SigningKey.from_pem((directory / KEY_FILE).read_bytes()).public)
