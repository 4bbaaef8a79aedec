"""Where a federation lives on disk.

    DIR/federation.json        the configuration and the manifest; made once by `puf-server init`
    DIR/state.db               SQLite: roster, round, tickets, model versions, audit log
    DIR/models/                one safetensors file per version, named by version and digest
    DIR/history/               what a method must remember of updates; only where the federation's method does
    DIR/spool/                 updates of the round under way; gone when it commits
    DIR/signing-key.pem        signs receipts; clients know its public half
    DIR/lock                   held by the server that serves this directory

A change of state is one transaction: what differs between two states and the audit lines that tell of it, together.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from puf_common.errors import Mismatch, PufError, StorageCorrupted, UsageError
from puf_common.files.private import write_new
from puf_common.receipts.signing import SigningKey, fingerprint
from puf_common.tensors.digests import digest
from puf_common.tensors.manifest import Manifest
from puf_common.tensors.model_file import read_manifest, read_payload, write_header
from puf_server import plugins
from puf_server.core.config import FederationConfig
from puf_server.core.state.jobs import Recovery, UnlearningJob
from puf_server.core.state.measurements import Evaluation
from puf_server.core.state.members import Member
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.rounds import HistoryRecord, Round, RoundRecord
from puf_server.core.state.state import AuditNote, State
from puf_server.core.state.tickets import Ticket
from puf_server.core.unlearning.model_versions import made_by
from puf_server.failpoints import hit
from puf_server.storage import federation_file, migrations
from puf_server.storage import rows as records
from puf_server.storage.database import append_audit, audit_head, audit_lines, connect, purge_free_pages, unsaved
from puf_server.storage.durable import DISK, Files, FileSource, NewFile, new_file, remove, sync_directory, unwritten

__all__ = ["KEY_FILE", "Store", "append_audit", "audit_head", "audit_lines", "create", "key_fingerprint"]

plugins.allow()
KEY_FILE = "signing-key.pem"

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE members (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tickets (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE models (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE records (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE history (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE audit (seq INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL, facts TEXT NOT NULL, hash BLOB NOT NULL);
"""

# Persistent fields of State: scalars and single records go to `meta`, mappings to a table of their own.
_SCALARS = ("version", "number", "attempt", "trained", "planned", "paused", "halted", "evaluations")
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


def create(
    directory: Path,
    config: FederationConfig,
    manifest: Manifest,
    payload: bytes | bytearray,
    now: float,
    files: Files = DISK,
) -> None:
    """Makes the state of a new federation; refuses a directory that already holds one.

    Its description comes last: before that there is no federation, and what an interrupted attempt left is replaced.
    """
    if (directory / "federation.json").exists():
        raise UsageError(f"{directory} already holds a federation; choose another directory or serve that one")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        for folder in (directory, directory / "models", directory / "spool"):
            if not folder.is_dir():
                files.mkdir(folder)
    except OSError as error:
        raise UsageError(f"cannot make {directory}: {error.strerror}") from None
    sync_directory(directory.parent, files)
    for left in ("state.db", "state.db-wal", "state.db-shm", KEY_FILE):
        remove(directory / left, files)
    sha = digest(payload, "sha256").hex()
    model = ModelVersion(
        version=0,
        round=0,
        digest=sha,
        nbytes=len(payload),
        status=ModelStatus.READY,
        created_at=now,
        blake3=digest(payload, "blake3").hex(),
    )
    with new_file(directory / "models" / _model_name(model), files) as file:
        file.write(write_header(manifest, {"version": "0", "digest": sha}))
        file.write(payload)
    key = SigningKey.generate()
    with new_file(directory / KEY_FILE, files) as file:
        file.write(key.to_pem())
    db = connect(directory / "state.db")
    with db:
        db.executescript(_TABLES)
        db.execute("INSERT INTO meta VALUES ('schema', ?)", (str(migrations.SCHEMA),))
    store = Store(directory, config, manifest, db, files=files)
    store._put("signing_key", key.public.hex())
    store._put("identity", json.dumps(federation_file.identity(config, manifest)))
    state = State(planned=config.plan.rounds, models={0: model})
    state = state.note(
        "federation.created",
        now,
        federation=config.id,
        model=config.model,
        digest=sha,
        key=fingerprint(key.public),
    )
    store.save(None, state)
    db.close()
    with new_file(directory / federation_file.FILE, files) as file:
        file.write(federation_file.described(config, manifest))


@dataclass
class Store:
    directory: Path
    config: FederationConfig
    manifest: Manifest
    db: sqlite3.Connection
    _lock: Any = None
    files: Files = DISK
    key: SigningKey = field(init=False)

    @classmethod
    def open(cls, directory: Path, files: Files = DISK) -> Store:
        """Opens a federation for serving; only one process at a time may."""
        config, manifest = federation_file.read(directory)
        lock = (directory / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise UsageError(f"another server serves {directory}; stop it first") from None
        try:
            db = connect(directory / "state.db")
        except BaseException:
            lock.close()
            raise
        store = cls(directory, config, manifest, db, lock, files)
        # Directories from before there were methods that remember.
        db.execute("CREATE TABLE IF NOT EXISTS history (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID")
        try:
            store._migrate()
            kept = json.loads(store._meta("identity") or "{}")
            federation_file.require_same(kept, federation_file.identity(config, manifest), directory)
            store.key = store._signing_key()
        except BaseException:
            store.close()
            raise
        return store

    def await_receipts(self, wanted: bool) -> None:
        """Remembers that this state comes from a backup and that nobody has said yet what was forgotten since."""
        with self.db:
            if wanted:
                self._put("awaits_receipts", "yes")
            else:
                self.db.execute("DELETE FROM meta WHERE key = 'awaits_receipts'")

    @property
    def awaits_receipts(self) -> bool:
        return self._meta("awaits_receipts") is not None

    def _signing_key(self) -> SigningKey:
        """The key that this federation has always had; made here for a directory from before there were receipts."""
        path = self.directory / KEY_FILE
        known = self._meta("signing_key")
        if known is None and not path.exists():
            write_new(path, SigningKey.generate().to_pem())
        try:
            key = SigningKey.from_pem(path.read_bytes())
        except FileNotFoundError:
            raise StorageCorrupted(
                f"{path} is missing: receipts cannot be signed; bring it back from a backup"
            ) from None
        if known is None:
            with self.db:
                self.db.execute("BEGIN IMMEDIATE")
                self._put("signing_key", key.public.hex())
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
                if found == "1":
                    # Schema 1 stored no identity. Accept the configuration as stated, once.
                    identity = federation_file.identity(self.config, self.manifest)
                    self._put("identity", json.dumps(identity))
                    facts["fingerprint"] = federation_file.fingerprint(identity)
                migrations.upgrade(self.db)
                self._put("schema", str(migrations.SCHEMA))
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
        try:
            row = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        except sqlite3.DatabaseError as error:
            raise StorageCorrupted(f"{self.directory / 'state.db'} cannot be read: {error}") from None
        return None if row is None else str(row[0])

    def close(self) -> None:
        self.db.close()
        if self._lock is not None:
            self._lock.close()

    def load(self) -> State:
        where = self.directory / "state.db"
        meta = dict(self.db.execute("SELECT key, value FROM meta"))
        # One that an older version did not have has its default.
        values: dict[str, Any] = {name: json.loads(meta[name]) for name in _SCALARS if name in meta}
        values |= {
            name: records.read(adapter, meta[name], name, where) for name, adapter in _SINGLES.items() if name in meta
        }
        for table, adapter in _MANY.items():
            rows = self.db.execute(f"SELECT id, body FROM {table} ORDER BY id")  # noqa: S608
            values[table] = {key: records.read(adapter, body, f"{table}/{key}", where) for key, body in rows}
        return State(**values)

    def save(self, before: State | None, after: State) -> None:
        """Writes the difference and the pending audit lines in one transaction; nothing at all when only presence changed."""
        changed = {
            name
            for name in (*_SCALARS, *_SINGLES, *_MANY)
            if before is None or getattr(before, name) is not getattr(after, name)
        }
        if not changed and not after.notes:
            return
        try:
            with self.db:
                self.db.execute("BEGIN IMMEDIATE")
                for name in changed & set(_SCALARS):
                    self._put(name, json.dumps(getattr(after, name), allow_nan=False))
                for name in changed & _SINGLES.keys():
                    self._put(name, records.text(_SINGLES[name], name, getattr(after, name)))
                for table in changed & _MANY.keys():
                    self._put_rows(table, getattr(before, table) if before else {}, getattr(after, table))
                hit("audit.write")
                self._audit(after.notes)
        except sqlite3.OperationalError as error:
            raise unsaved(error) from error
        except OSError as error:
            raise unwritten(error, "the change") from error

    def _put(self, key: str, value: str) -> None:
        self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _put_rows(self, table: str, before: Any, after: Any) -> None:
        rows = [
            (key, records.text(_MANY[table], f"{table}/{key}", record))
            for key, record in after.items()
            if before.get(key) is not record
        ]
        self.db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", rows)  # noqa: S608
        self.db.executemany(f"DELETE FROM {table} WHERE id = ?", [(k,) for k in before if k not in after])  # noqa: S608

    def _audit(self, notes: tuple[AuditNote, ...]) -> None:
        for note in notes:
            append_audit(self.db, note.at, note.event, note.facts)

    def purge_free_pages(self) -> bool:
        """Wipes what was overwritten or deleted; False where that has to wait."""
        return purge_free_pages(self.directory / "state.db")

    # -- model files ---------------------------------------------------------------------------------------------------

    def model_path(self, model: ModelVersion) -> Path:
        return self.directory / "models" / _model_name(model)

    def model_source(self, model: ModelVersion) -> FileSource:
        path = self.model_path(model)
        try:
            return self.files.read(path, path.stat().st_size - model.nbytes)
        except FileNotFoundError:
            raise StorageCorrupted(f"the file of model {model.version} is missing: {path.name}") from None

    def model_payload(self, model: ModelVersion) -> bytearray:
        return read_payload(self.model_path(model), self.manifest)

    def new_model(self, version: int) -> NewFile:
        """A model file being written; publish it with `publish_model` once its digest is known."""
        path = self.directory / "models" / f"v{version:06d}.part"
        remove(path, self.files)
        return NewFile(path, self.files, "model")

    def publish_model(self, file: NewFile, version: int, digest: str) -> None:
        file.publish(self.directory / "models" / f"v{version:06d}-{digest[:16]}.safetensors")

    def require_models(self, state: State) -> None:
        """Refuses a directory that lacks a model: every file has its length, those in use their digest.

        Whoever fetches or exports an older one checks its digest; reading them all would make a start take minutes.
        """
        used = {state.version}
        used |= {state.round.base} if state.round else set()
        used |= {state.evaluation.version} if state.evaluation else set()
        used |= set(made_by(state.job)) if state.job else set()
        for kept in state.history.values():
            path = self.directory / "history" / history_name(kept)
            if kept.digest and not path.exists():
                raise StorageCorrupted(f"{path} is missing; bring it back from a backup")
        for model in state.models.values():
            if model.status is ModelStatus.DELETED:
                continue
            path = self.model_path(model)
            if not path.exists():
                raise StorageCorrupted(
                    f"the file of model {model.version} is missing: {path}; bring it back from a backup"
                )
            try:
                stored, _, begins_at = read_manifest(path)
                self.manifest.require(stored.fingerprint, path.name)
                if model.version in used:
                    with self.files.read(path, begins_at) as source:
                        if source.digest() != model.digest:
                            raise StorageCorrupted("it does not match its digest")
            except PufError as error:
                raise StorageCorrupted(
                    f"the file of model {model.version} is damaged: {error.message}; bring {path} back from a backup"
                ) from None

    def delete_orphans(self, state: State, *, everything: bool = False) -> None:
        """Deletes files that no record names. `everything` also takes what may be on its way: only before serving."""
        coming: tuple[str, ...] = (f"v{state.newest + 1:06d}-",)
        models = {_model_name(m) for m in state.models.values() if m.status is not ModelStatus.DELETED}
        spool = set()
        if state.round is not None:
            spool = {spool_name(state.round, key) for key in state.round.received}
            # Written, but not booked yet.
            coming += tuple(spool_name(state.round, assignment.key, "") for assignment in state.round.missing)
            coming += (f"{state.round.number:08d}.",)
        history = {history_name(r) for r in state.history.values() if r.digest}
        for folder, wanted in (("models", models), ("spool", spool), ("history", history)):
            if folder == "history" and not (self.directory / folder).exists():
                continue
            gone = False
            for name in self.files.listdir(self.directory / folder):
                on_its_way = name.endswith(".part") or name.startswith(coming)
                if name not in wanted and (everything or not on_its_way):
                    remove(self.directory / folder / name, self.files)
                    gone = True
            if gone:
                sync_directory(self.directory / folder, self.files)

    # -- spool ---------------------------------------------------------------------------------------------------------

    def spool_path(self, name: str) -> Path:
        return self.directory / "spool" / name

    def damaged(self, current: Round | None) -> dict[str, str]:
        """Updates that are booked and not, or not wholly, on disk, with what is wrong: these must come again."""
        found: dict[str, str] = {}
        if current is None:
            return found
        for key, update in current.received.items():
            try:
                with self.files.read(self.spool_path(spool_name(current, key))) as source:
                    if source.nbytes != update.nbytes:
                        found[key] = f"{source.nbytes} of {update.nbytes} bytes are there"
                    elif source.digest(update.digest_kind) != update.digest:
                        found[key] = "it does not match its digest"
            except OSError as error:
                found[key] = f"it cannot be read: {error.strerror or error}"
        return found


def spool_name(current: Round, key: str, digest: str | None = None) -> str:
    """File of one update; the digest is in the name, so that a conflicting one cannot overwrite it."""
    digest = current.received[key].digest if digest is None else digest
    return f"{current.number}.{current.attempt}.{key.replace('/', '.')}.{digest[:32]}"


def history_name(kept: HistoryRecord) -> str:
    """File of a kept update or sum; it begins with the round, so that what a round is writing is known as such."""
    return f"{kept.round:08d}.{kept.key.replace('/', '.')}-{kept.digest[:16]}"


def key_fingerprint(directory: Path) -> str:
    """What the operator tells people who check receipts."""
    return fingerprint(SigningKey.from_pem((directory / KEY_FILE).read_bytes()).public)


def _model_name(model: ModelVersion) -> str:
    return f"v{model.version:06d}-{model.digest[:16]}.safetensors"
