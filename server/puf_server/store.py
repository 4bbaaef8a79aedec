"""Where a federation lives on disk.

    DIR/federation.json        the configuration and the manifest; made once by `puf-server init`
    DIR/state.db               SQLite: roster, round, tickets, model versions, audit log
    DIR/models/                one safetensors file per version, named by version and digest
    DIR/spool/                 updates of the round under way; gone when it commits
    DIR/lock                   held by the server that serves this directory

A change of state is one transaction: what differs between two states and the audit lines that tell of it, together.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import sqlite3
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from puf_common.errors import Corrupted, Mismatch, Unavailable, UsageError
from puf_common.manifest import Manifest, TensorSpec
from puf_common.modelfile import read_payload, write_header
from puf_server.core.config import FederationConfig
from puf_server.core.state import (
    Episode,
    Member,
    ModelStatus,
    ModelVersion,
    Note,
    Recovery,
    Round,
    RoundRecord,
    State,
    Survey,
    Ticket,
)
from puf_server.files import FileSource, NewFile, new_file, remove, sync_directory

__all__ = ["Store", "create"]

SCHEMA = 1

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE members (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tickets (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE models (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE records (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE audit (seq INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL, facts TEXT NOT NULL, hash BLOB NOT NULL);
"""

# Persistent fields of State: scalars and single records go to `meta`, mappings to a table of their own.
_SCALARS = ("version", "number", "attempt", "trained", "planned", "paused", "halted", "surveys")
_SINGLES: dict[str, TypeAdapter[Any]] = {
    "round": TypeAdapter(Round | None),
    "survey": TypeAdapter(Survey | None),
    "episode": TypeAdapter(Episode | None),
    "recovery": TypeAdapter(Recovery | None),
}
_MANY: dict[str, TypeAdapter[Any]] = {
    "members": TypeAdapter(Member),
    "tickets": TypeAdapter(Ticket),
    "models": TypeAdapter(ModelVersion),
    "records": TypeAdapter(RoundRecord),
}
VOLATILE = frozenset({"stopping", "seen", "activity", "nbytes_down", "notes"})
assert {f.name for f in fields(State)} == {*_SCALARS, *_SINGLES, *_MANY, *VOLATILE}


def create(
    directory: Path, config: FederationConfig, manifest: Manifest, payload: bytes | bytearray, now: float
) -> None:
    """Makes the state of a new federation; refuses a directory that already holds one."""
    if (directory / "federation.json").exists():
        raise UsageError(f"{directory} already holds a federation; choose another directory or serve that one")
    try:
        for folder in (directory, directory / "models", directory / "spool"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {directory}: {error.strerror}") from None
    digest = hashlib.sha256(payload).hexdigest()
    model = ModelVersion(
        version=0, round=0, digest=digest, nbytes=len(payload), status=ModelStatus.READY, created_at=now
    )
    with new_file(directory / "models" / _model_name(model)) as file:
        file.write(write_header(manifest, {"version": "0", "digest": digest}))
        file.write(payload)
    db = _connect(directory / "state.db")
    with db:
        db.executescript(_TABLES)
        db.execute("INSERT INTO meta VALUES ('schema', ?)", (str(SCHEMA),))
    described = {
        "config": config.model_dump(mode="json"),
        "manifest": [[t.name, t.dtype, list(t.shape), t.role] for t in manifest.tensors],
    }
    with new_file(directory / "federation.json") as file:
        file.write(json.dumps(described, indent=1).encode())
    store = Store(directory, config, manifest, db)
    state = State(planned=config.plan.rounds, models={0: model})
    state = state.note("federation.created", now, federation=config.id, model=config.model, digest=digest)
    store.save(None, state)
    db.close()


@dataclass
class Store:
    directory: Path
    config: FederationConfig
    manifest: Manifest
    db: sqlite3.Connection
    _lock: Any = None

    @classmethod
    def open(cls, directory: Path) -> Store:
        """Opens a federation for serving; only one process at a time may."""
        described = directory / "federation.json"
        if not described.exists():
            raise UsageError(f"{directory} holds no federation; make one with `puf-server init --state {directory}`")
        try:
            raw = json.loads(described.read_text())
            config = FederationConfig.model_validate(raw["config"])
            manifest = Manifest(tuple(TensorSpec(n, d, tuple(s), r) for n, d, s, r in raw["manifest"]))
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise Corrupted(f"{described} cannot be read: {str(error).splitlines()[0]}") from None
        lock = (directory / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise UsageError(f"another server serves {directory}; stop it first") from None
        store = cls(directory, config, manifest, _connect(directory / "state.db"), lock)
        schema = store.schema()
        if schema != str(SCHEMA):
            store.close()
            raise Mismatch(f"{directory} has state of version {schema}, this server reads {SCHEMA}")
        return store

    def schema(self) -> str:
        try:
            row = self.db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        except sqlite3.DatabaseError as error:
            self.close()
            raise Corrupted(f"{self.directory / 'state.db'} cannot be read: {error}") from None
        return str(row[0]) if row else "none"

    def close(self) -> None:
        self.db.close()
        if self._lock is not None:
            self._lock.close()

    def load(self) -> State:
        meta = dict(self.db.execute("SELECT key, value FROM meta"))
        values: dict[str, Any] = {name: json.loads(meta[name]) for name in _SCALARS}
        values |= {name: adapter.validate_json(meta[name]) for name, adapter in _SINGLES.items()}
        for table, adapter in _MANY.items():
            rows = self.db.execute(f"SELECT id, body FROM {table} ORDER BY id")  # noqa: S608
            values[table] = {key: adapter.validate_json(body) for key, body in rows}
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
                    self._put(name, json.dumps(getattr(after, name)))
                for name in changed & _SINGLES.keys():
                    self._put(name, _SINGLES[name].dump_json(getattr(after, name)).decode())
                for table in changed & _MANY.keys():
                    self._put_rows(table, getattr(before, table) if before else {}, getattr(after, table))
                self._audit(after.notes)
        except sqlite3.OperationalError as error:
            raise Unavailable(f"the state cannot be written: {error}") from error

    def _put(self, key: str, value: str) -> None:
        self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _put_rows(self, table: str, before: Any, after: Any) -> None:
        rows = [
            (key, _MANY[table].dump_json(record).decode())
            for key, record in after.items()
            if before.get(key) is not record
        ]
        self.db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", rows)  # noqa: S608
        self.db.executemany(f"DELETE FROM {table} WHERE id = ?", [(k,) for k in before if k not in after])  # noqa: S608

    def _audit(self, notes: tuple[Note, ...]) -> None:
        """Appends lines, each carrying a hash over itself and its predecessor's."""
        last = self.db.execute("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1").fetchone() or (0, b"")
        seq, link = last
        for note in notes:
            seq += 1
            facts = json.dumps(dict(note.facts), sort_keys=True, separators=(",", ":"))
            link = hashlib.sha256(link + f"{seq}|{note.at!r}|{note.event}|{facts}".encode()).digest()
            self.db.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?)", (seq, note.at, note.event, facts, link))

    # -- model files ---------------------------------------------------------------------------------------------------

    def model_path(self, model: ModelVersion) -> Path:
        return self.directory / "models" / _model_name(model)

    def model_source(self, model: ModelVersion) -> FileSource:
        path = self.model_path(model)
        try:
            payload = path.stat().st_size - model.nbytes
            return FileSource(path, payload)
        except FileNotFoundError:
            raise Corrupted(f"the file of model {model.version} is missing: {path.name}") from None

    def model_payload(self, model: ModelVersion) -> bytearray:
        return read_payload(self.model_path(model), self.manifest)

    def new_model(self, version: int) -> NewFile:
        """A model file being written; publish it with `publish_model` once its digest is known."""
        path = self.directory / "models" / f"v{version:06d}.part"
        remove(path)
        return NewFile(path)

    def publish_model(self, file: NewFile, version: int, digest: str) -> None:
        file.publish(self.directory / "models" / f"v{version:06d}-{digest[:16]}.safetensors")

    def sweep(self, state: State, *, everything: bool = False) -> None:
        """Deletes files that no record names. `everything` also takes what may be on its way: only before serving."""
        coming: tuple[str, ...] = (f"v{state.version + 1:06d}-",)
        models = {_model_name(m) for m in state.models.values() if m.status is not ModelStatus.DELETED}
        spool = set()
        if state.round is not None:
            spool = {spool_name(state.round, key) for key in state.round.received}
            # Written, but not booked yet.
            coming += tuple(spool_name(state.round, slot.key, "") for slot in state.round.missing)
        for folder, wanted in (("models", models), ("spool", spool)):
            gone = False
            for path in (self.directory / folder).iterdir():
                on_its_way = path.name.endswith(".part") or path.name.startswith(coming)
                if path.name not in wanted and (everything or not on_its_way):
                    remove(path)
                    gone = True
            if gone:
                sync_directory(self.directory / folder)

    # -- spool ---------------------------------------------------------------------------------------------------------

    def spool_path(self, name: str) -> Path:
        return self.directory / "spool" / name


def spool_name(current: Round, key: str, digest: str | None = None) -> str:
    """File of one update; the digest is in the name, so that a conflicting one cannot overwrite it."""
    digest = current.received[key].digest if digest is None else digest
    return f"{current.number}.{current.attempt}.{key.replace('/', '.')}.{digest[:32]}"


def _model_name(model: ModelVersion) -> str:
    return f"v{model.version:06d}-{model.digest[:16]}.safetensors"


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")
    return db
