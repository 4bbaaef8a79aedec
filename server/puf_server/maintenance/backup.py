"""`puf-server backup`: writes a federation to one tar file, also while it is served.

    state.db, federation.json, signing-key.pem, tokens.json, revoked.json, models/..., history/..., backup.json

A backup holds no updates: after a restore the open round asks for them again. It holds models, also of clients that ask
to be forgotten later. Therefore the audit log records every backup and receipts list it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import secrets
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from puf_common import audit_chain
from puf_common.errors import Unavailable, UsageError
from puf_server.core.state.rounds import HistoryRecord
from puf_server.storage import migrations, rows
from puf_server.storage.database import append_audit, audit_head, check_pages, readable
from puf_server.storage.durable import DISK, Files, remove, sync_directory, sync_file
from puf_server.storage.layout import KEY_FILE, history_name, model_name

FORMAT = 1
# The last entry of a backup: the digests of all others.
LIST = "backup.json"
OPTIONAL = ("tokens.json", "revoked.json")
_ATTEMPTS = 10


@dataclass(frozen=True)
class Backup:
    """A finished backup: its file, the file's SHA-256, the number of models and the last audit entry in it."""

    path: Path
    digest: str
    models: int
    line: int


def backup(directory: Path, out: Path, now: float | None = None, files: Files = DISK) -> Backup:
    """Writes one consistent state of a federation. On failure no file is left. Only its owner may read the file."""
    if not (directory / "federation.json").exists():
        raise UsageError(f"{directory} holds no federation")
    if not (directory / "state.db").exists():
        raise UsageError(
            f"the state of the federation in {directory} is in PostgreSQL: back it up with pg_dump, then copy the directory"
        )
    if out.exists():
        raise UsageError(f"{out} exists already and is not overwritten")
    now = time.time() if now is None else now
    draft = out.with_name(f".{out.name}.{secrets.token_hex(6)}.part")
    try:
        with closing(sqlite3.connect(directory / "state.db", isolation_level=None)) as db:
            for _ in range(_ATTEMPTS):
                with ExitStack() as stack:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=out.parent, prefix=".puf-")))
                    with readable(directory / "state.db"):
                        head, versions, history = _snapshot(db, folder / "state.db", directory / "state.db")
                    try:
                        opened = _opened(directory, folder, (*versions.values(), *history), stack)
                    except FileNotFoundError:
                        # A model was deleted since the snapshot: take a newer snapshot.
                        continue
                    digest = _write(draft, opened, head, now, files)
                # Before the file gets its name: every backup must be in the audit log.
                _record(db, now, digest, sorted(versions), head)
                files.rename(draft, out)
                sync_directory(out.parent, files)
                return Backup(out, digest, len(versions), head.number)
        raise Unavailable("models are deleted faster than they can be read; try again, or pause the federation")
    finally:
        remove(draft, files)


def _snapshot(db: sqlite3.Connection, path: Path, source: Path) -> tuple[audit_chain.Head, dict[int, str], list[str]]:
    """Copies the database with SQLite's backup. Returns its audit head and the files of models and history it names.

    Raises StorageCorrupted for a damaged database: a server could not start from the backup.
    """
    with closing(sqlite3.connect(path)) as copy:
        db.backup(copy)
        check_pages(copy, source)
        (schema,) = copy.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        if schema == str(migrations.SCHEMA):
            # Older schemas have no checksums.
            for table in migrations.TABLES:
                rows.verify(table, copy.execute(f"SELECT * FROM {table}"), source)  # noqa: S608
        copy.execute("PRAGMA journal_mode = DELETE")
        models = [json.loads(body) for (body,) in copy.execute("SELECT body FROM models")]
        head = audit_head(copy)
        kept = copy.execute("SELECT name FROM sqlite_master WHERE name = 'history'").fetchone() is not None
        bodies = [body for (body,) in copy.execute("SELECT body FROM history")] if kept else []
    kept_models = [(m["version"], m["digest"]) for m in models if m["status"] != "deleted"]
    records = [TypeAdapter(HistoryRecord).validate_json(body) for body in bodies]
    history = [f"history/{history_name(r)}" for r in records if r.digest]
    return head, {v: f"models/{model_name(v, digest)}" for v, digest in kept_models}, history


def _opened(directory: Path, folder: Path, names: Sequence[str], stack: ExitStack) -> dict[str, IO[bytes]]:
    """All files of the backup, opened at once: an open file can be read to its end even after it is deleted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if len(names) + 100 > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, len(names) + 200), hard))
    paths = {"state.db": folder / "state.db"}
    paths |= {name: directory / name for name in ("federation.json", KEY_FILE, *names)}
    paths |= {name: directory / name for name in OPTIONAL if (directory / name).exists()}
    return {name: stack.enter_context(path.open("rb")) for name, path in paths.items()}


def _record(db: sqlite3.Connection, now: float, digest: str, versions: list[int], head: audit_chain.Head) -> None:
    """Appends the backup to the audit log, so that receipts can list it. A running server appends to the same log."""
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA busy_timeout = 30000")
        db.execute("BEGIN IMMEDIATE")
        append_audit(db, now, "backup.made", {"digest": digest, "versions": versions, "line": head.number})
        db.execute("COMMIT")
    except sqlite3.Error as error:
        raise Unavailable(f"the backup could not be recorded in the audit log: {error}") from None


def _write(path: Path, opened: dict[str, IO[bytes]], head: audit_chain.Head, now: float, files: Files) -> str:
    """Writes the open files to a new archive, readable by its owner alone. Returns the SHA-256 of the archive."""
    sha = hashlib.sha256()
    out = files.create(path)
    try:

        class Hashed(io.RawIOBase):
            def write(self, data: Any) -> int:
                sha.update(data)
                files.write(out, bytes(data))
                return len(data)

        listed: dict[str, str] = {}
        with tarfile.open(fileobj=Hashed(), mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for name, file in opened.items():
                reader = _HashingReader(file)
                tar.addfile(_entry(name, os.fstat(file.fileno()).st_size, now), reader)
                listed[name] = reader.sha.hexdigest()
            facts = {"format": FORMAT, "made_at": now, "line": head.number, "hash": head.hash.hex(), "files": listed}
            body = json.dumps(facts, indent=1, sort_keys=True).encode()
            tar.addfile(_entry(LIST, len(body), now), io.BytesIO(body))
        sync_file(out, path, files)
    finally:
        files.close(out)
    return sha.hexdigest()


class _HashingReader:
    """Reads a file and hashes what it reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self.sha = hashlib.sha256()
        self._file = file

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self.sha.update(block)
        return block


def _entry(name: str, size: int, now: float) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, int(now)
    return entry
