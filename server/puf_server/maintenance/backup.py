"""`puf-server backup | restore`: a federation in one file.

    state.db, federation.json, signing-key.pem, tokens.json, revoked.json, models/..., history/..., and last
    backup.json, which lists them with their digests

A backup may be made while the server serves. It holds no updates: the round under way is asked for again after a
restore. It does hold models, also of clients that ask to be forgotten later. A backup is therefore noted in the audit
log and listed on their receipts, and a restored state that is older than a receipt opens its ticket again.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import resource
import secrets
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from puf_common.errors import NotNow, PufError, StorageCorrupted, Unavailable, UsageError
from puf_common.files.durable import make_directories
from puf_common.logging import get_logger
from puf_server.core import audit_chain
from puf_server.core.state.rounds import HistoryRecord
from puf_server.core.state.state import State
from puf_server.core.unlearning import reopen
from puf_server.engine.receipts import read_own
from puf_server.storage.database import append_audit, audit_head, audit_lines
from puf_server.storage.durable import DISK, Files, remove, sync_directory, sync_file
from puf_server.storage.layout import KEY_FILE, history_name
from puf_server.storage.state_store import Store

__all__ = ["Backup", "Restored", "answer_for_receipts", "backup", "restore"]

log = get_logger(__name__)

FORMAT = 1
_LIST = "backup.json"
_REQUIRED = frozenset({"federation.json", "state.db", KEY_FILE})
_OPTIONAL = ("tokens.json", "revoked.json")
_MODEL = re.compile(r"models/v\d{6,}-[0-9a-f]{16}\.safetensors")
_HISTORY = re.compile(r"history/\d{8,}\.[A-Za-z0-9._-]+-[0-9a-f]{16}")
_ATTEMPTS = 10


@dataclass(frozen=True)
class Backup:
    path: Path
    digest: str
    models: int
    line: int


@dataclass(frozen=True)
class Restored:
    federation: str
    made_at: float
    round: int
    # Per receipt: its file, whether it opened its ticket again, and why.
    receipts: list[tuple[Path, bool, str]]


def backup(directory: Path, out: Path, now: float | None = None, files: Files = DISK) -> Backup:
    """Writes one consistent moment of a federation; the file appears whole or not at all, for its owner alone."""
    if not (directory / "federation.json").exists():
        raise UsageError(f"{directory} holds no federation")
    if out.exists():
        raise UsageError(f"{out} exists already and is not overwritten")
    now = time.time() if now is None else now
    draft = out.with_name(f".{out.name}.{secrets.token_hex(6)}.part")
    try:
        with closing(sqlite3.connect(directory / "state.db", isolation_level=None)) as db:
            for _ in range(_ATTEMPTS):
                with ExitStack() as stack:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=out.parent, prefix=".puf-")))
                    head, versions, history = _snapshot(db, folder / "state.db")
                    try:
                        opened = _opened(directory, folder, (*versions.values(), *history), stack)
                    except FileNotFoundError:
                        # A model was deleted since the snapshot: take a newer one.
                        continue
                    digest = _write(draft, opened, head, now, files)
                try:
                    # Before it has its name: a copy that no receipt could tell of must not exist.
                    _note(db, now, digest, sorted(versions), head)
                except sqlite3.Error as error:
                    raise Unavailable(f"the backup could not be noted in the audit log: {error}") from None
                files.rename(draft, out)
                sync_directory(out.parent, files)
                return Backup(out, digest, len(versions), head.number)
        raise Unavailable("models come and go faster than they can be read; try again, or pause the federation")
    finally:
        remove(draft, files)


def restore(
    source: Path,
    directory: Path,
    receipts: Path | None = None,
    now: float | None = None,
    *,
    waived: bool = False,
    files: Files = DISK,
) -> Restored:
    """Makes a state directory from a backup, checks all of it, and shows it the receipts that are at hand."""
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; restore into a new directory")
    now = time.time() if now is None else now
    found = _receipts(receipts) if receipts is not None else []
    make_directories(directory.parent, files)
    work = directory.with_name(f".{directory.name}.{secrets.token_hex(6)}.part")
    try:
        for folder in (work, work / "models", work / "spool"):
            files.mkdir(folder)
        made = _extract(source, work, files)
        store = Store.open(work)
        try:
            _check(store)
            before = store.load()
            after = reopen.restored(before, now, made_at=made["made_at"], line=made["line"])
            shown: list[tuple[Path, bool, str]] = []
            for path in found:
                after, reopened, why = _present(store, after, path, now)
                shown.append((path, reopened, why))
            if waived:
                after = after.note("receipts.waived", now)
            store.save(before, after)
            store.await_receipts(not found and not waived)
            summary = Restored(store.config.id, float(made["made_at"]), after.number, shown)
        finally:
            store.close()
        (work / "lock").unlink(missing_ok=True)
        for folder in (work / "models", work / "history", work):
            if folder.is_dir():
                sync_directory(folder, files)
        if directory.exists():
            directory.rmdir()
        files.rename(work, directory)
        sync_directory(directory.parent, files)
        return summary
    finally:
        shutil.rmtree(work, ignore_errors=True)


def answer_for_receipts(directory: Path, receipts: Path | None, *, waived: bool) -> None:
    """Before a restored state is served for the first time somebody says what was forgotten since the backup was made."""
    if receipts is not None and waived:
        raise UsageError("--receipts and --no-receipts exclude each other")
    store = Store.open(directory)
    try:
        if receipts is None and not waived:
            if store.awaits_receipts:
                raise NotNow(
                    f"{directory} was restored from a backup: whoever was forgotten since is known again. Serve it with "
                    "--receipts DIR, the receipts handed out since, or with --no-receipts if there are none"
                )
            return
        now = time.time()
        before = after = store.load()
        for path in _receipts(receipts) if receipts is not None else []:
            after, reopened, why = _present(store, after, path, now)
            log.log(logging.WARNING if reopened else logging.INFO, "receipt", file=path.name, outcome=why)
        if waived and store.awaits_receipts:
            after = after.note("receipts.waived", now)
        store.save(before, after)
        store.await_receipts(False)
    finally:
        store.close()


def _receipts(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.json"))
    if not found:
        raise UsageError(f"{folder} holds no receipts (*.json)")
    return found


def _snapshot(db: sqlite3.Connection, path: Path) -> tuple[audit_chain.Head, dict[int, str], list[str]]:
    """A copy of the database by SQLite's own means; its audit head and the files of models and history it names."""
    with closing(sqlite3.connect(path)) as copy:
        db.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
        models = [json.loads(body) for (body,) in copy.execute("SELECT body FROM models")]
        head = audit_head(copy)
        kept = copy.execute("SELECT name FROM sqlite_master WHERE name = 'history'").fetchone() is not None
        bodies = [body for (body,) in copy.execute("SELECT body FROM history")] if kept else []
    names = {m["version"]: f"models/v{m['version']:06d}-{m['digest'][:16]}.safetensors" for m in models}
    records = [TypeAdapter(HistoryRecord).validate_json(body) for body in bodies]
    history = [f"history/{history_name(r)}" for r in records if r.digest]
    return head, {m["version"]: names[m["version"]] for m in models if m["status"] != "deleted"}, history


def _opened(directory: Path, folder: Path, names: Sequence[str], stack: ExitStack) -> dict[str, IO[bytes]]:
    """Everything that goes into the backup, opened at once: what is open can be read to its end, deleted or not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if len(names) + 100 > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, len(names) + 200), hard))
    paths = {"state.db": folder / "state.db"}
    paths |= {name: directory / name for name in ("federation.json", KEY_FILE, *names)}
    paths |= {name: directory / name for name in _OPTIONAL if (directory / name).exists()}
    return {name: stack.enter_context(path.open("rb")) for name, path in paths.items()}


def _write(draft: Path, opened: dict[str, IO[bytes]], head: audit_chain.Head, now: float, files: Files) -> str:
    sha = hashlib.sha256()
    out = files.create(draft)
    try:

        class Hashed(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                sha.update(data)
                files.write(out, bytes(data))
                return len(data)

        listed: dict[str, str] = {}
        with tarfile.open(fileobj=Hashed(), mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for name, file in opened.items():
                reader = _Reader(file)
                tar.addfile(_entry(name, os.fstat(file.fileno()).st_size, now), reader)
                listed[name] = reader.sha.hexdigest()
            facts = {"format": FORMAT, "made_at": now, "line": head.number, "hash": head.hash.hex(), "files": listed}
            body = json.dumps(facts, indent=1, sort_keys=True).encode()
            tar.addfile(_entry(_LIST, len(body), now), io.BytesIO(body))
        sync_file(out, draft, files)
    finally:
        files.close(out)
    return sha.hexdigest()


class _Reader(io.RawIOBase):
    """Hashes what is read from a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self.sha = hashlib.sha256()
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._file.read(len(buffer))
        self.sha.update(block)
        buffer[: len(block)] = block
        return len(block)


def _entry(name: str, size: int, now: float) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, int(now)
    return entry


def _note(db: sqlite3.Connection, now: float, digest: str, versions: list[int], head: audit_chain.Head) -> None:
    """From here on receipts can tell that this copy exists. A running server appends to the same log."""
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA busy_timeout = 30000")
    db.execute("BEGIN IMMEDIATE")
    append_audit(db, now, "backup.made", {"digest": digest, "versions": versions, "line": head.number})
    db.execute("COMMIT")


def _extract(source: Path, work: Path, files: Files) -> dict[str, Any]:
    """Unpacks files of known names only, and compares every one with its digest."""
    found: dict[str, str] = {}
    made: dict[str, Any] = {}
    try:
        with tarfile.open(source, "r:") as tar:
            for entry in tar:
                body = tar.extractfile(entry) if entry.isreg() else None
                known = entry.name in _REQUIRED or entry.name in (*_OPTIONAL, _LIST)
                known = known or bool(_MODEL.fullmatch(entry.name) or _HISTORY.fullmatch(entry.name))
                if body is None or not known or entry.name in found:
                    raise StorageCorrupted(f"{source} holds {entry.name!r}, which is no part of a backup")
                if entry.name == _LIST:
                    made = json.loads(body.read())
                else:
                    if not (folder := (work / entry.name).parent).is_dir():
                        files.mkdir(folder)
                    found[entry.name] = _copy(body, work / entry.name, files)
        listed, _, _ = dict(made["files"]), float(made["made_at"]), int(made["line"])
    except FileNotFoundError:
        raise UsageError(f"{source} does not exist") from None
    except (tarfile.TarError, ValueError, KeyError, TypeError, EOFError) as error:
        raise StorageCorrupted(f"{source} is not a backup, or it is damaged: {error}") from None
    if made.get("format") != FORMAT:
        raise StorageCorrupted(f"{source} is a backup of format {made.get('format')}; this server reads {FORMAT}")
    for name in sorted(_REQUIRED | listed.keys() | found.keys()):
        if name not in found or found[name] != listed.get(name):
            raise StorageCorrupted(f"{name} in {source} is missing or damaged", file=name)
    return made


def _copy(body: IO[bytes], path: Path, files: Files) -> str:
    sha = hashlib.sha256()
    out = files.create(path)
    try:
        for block in _blocks(body):
            sha.update(block)
            files.write(out, block)
        sync_file(out, path, files)
    finally:
        files.close(out)
    return sha.hexdigest()


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(1 << 20):
        yield block


def _check(store: Store) -> None:
    problem = store.db.execute("PRAGMA integrity_check").fetchone()
    if problem != ("ok",):
        raise StorageCorrupted(f"the database in the backup is damaged: {problem[0] if problem else 'unreadable'}")
    audit_chain.follow(audit_lines(store.db))


def _present(store: Store, state: State, path: Path, now: float) -> tuple[State, bool, str]:
    try:
        shown = read_own(path.read_bytes(), store.config.id, store.key.public)
        return reopen.reopen(state, store.config, shown.content, now)
    except PufError as error:
        raise type(error)(f"{path}: {error.message}") from None
