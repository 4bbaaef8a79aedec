"""`puf-server restore`: makes a state directory from a backup, without undoing what was forgotten since.

A restored state knows clients again that were forgotten after the backup. Their receipts open their tickets again. The
state is served only after receipts were shown or the operator stated that there are none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import shutil
import tarfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from puf_common import audit_chain
from puf_common.errors import NotNow, PufError, StorageCorrupted, UsageError
from puf_common.files.durable import make_directories
from puf_common.logging import get_logger
from puf_server.core.state.state import State
from puf_server.core.unlearning import reopen
from puf_server.engine.receipts import read_own
from puf_server.maintenance.backup import FORMAT, LIST, OPTIONAL
from puf_server.storage.durable import DISK, Files, sync_directory, sync_file
from puf_server.storage.layout import KEY_FILE
from puf_server.storage.state_store import Store

_REQUIRED = frozenset({"federation.json", "state.db", KEY_FILE})
_MODEL = re.compile(r"models/v\d{6,}-[0-9a-f]{16}\.safetensors")
_HISTORY = re.compile(r"history/\d{8,}\.[A-Za-z0-9._-]+-[0-9a-f]{16}")
log = get_logger(__name__)


@dataclass(frozen=True)
class Restored:
    """The result of a restore. `receipts` has the file, whether it opened its ticket again, and the reason."""

    federation: str
    made_at: float
    round: int
    receipts: list[tuple[Path, bool, str]]


def restore(
    source: Path,
    directory: Path,
    receipts: Path | None = None,
    now: float | None = None,
    *,
    waived: bool = False,
    files: Files = DISK,
) -> Restored:
    """Makes a state directory from a backup, verifies all of it, and applies the receipts in the folder `receipts`.

    `waived` states that nothing was forgotten since the backup.
    """
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; restore into a new directory")
    now = time.time() if now is None else now
    found = _receipts(receipts)
    make_directories(directory.parent, files)
    work = directory.with_name(f".{directory.name}.{secrets.token_hex(6)}.part")
    try:
        for folder in (work, work / "models", work / "spool"):
            files.mkdir(folder)
        made = _extract(source, work, files)
        with closing(Store.open(work)) as store:
            _verify(store)
            before = store.load()
            after = reopen.restored(before, now, made_at=made["made_at"], line=made["line"])
            after, shown = _apply(store, after, found, now)
            if waived:
                after = after.note("receipts.waived", now)
            store.save(before, after)
            store.await_receipts(not found and not waived)
            summary = Restored(store.config.id, float(made["made_at"]), after.number, shown)
        _install(work, directory, files)
        return summary
    finally:
        shutil.rmtree(work, ignore_errors=True)


def apply_receipts(directory: Path, receipts: Path | None, *, waived: bool, database: str = "") -> None:
    """Applies receipts before a restored state is served. Raises NotNow if it needs receipts and none are given."""
    if receipts is not None and waived:
        raise UsageError("--receipts and --no-receipts exclude each other")
    with closing(Store.open(directory, database=database)) as store:
        if receipts is None and not waived:
            if store.awaits_receipts:
                raise NotNow(
                    f"{directory} was restored from a backup: it knows clients that were forgotten since. Serve it with "
                    "--receipts DIR, the receipts issued since, or with --no-receipts if there are none"
                )
            return
        if store.joined:
            if receipts is not None:
                raise NotNow("other servers serve this federation: stop them before you show receipts with --receipts")
            return
        now = time.time()
        before = store.load()
        after, shown = _apply(store, before, _receipts(receipts), now)
        for path, reopened, why in shown:
            log.log(logging.WARNING if reopened else logging.INFO, "receipt applied", file=path.name, outcome=why)
        if waived and store.awaits_receipts:
            after = after.note("receipts.waived", now)
        store.save(before, after)
        store.await_receipts(False)


def _receipts(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    found = sorted(folder.glob("*.json"))
    if not found:
        raise UsageError(f"{folder} holds no receipts (*.json)")
    return found


def _apply(store: Store, state: State, paths: list[Path], now: float) -> tuple[State, list[tuple[Path, bool, str]]]:
    """The state after all receipts, and the outcome of each."""
    shown: list[tuple[Path, bool, str]] = []
    for path in paths:
        try:
            receipt = read_own(path.read_bytes(), store.config.id, store.key.public)
            state, reopened, why = reopen.reopen(state, store.config, receipt.content, now)
        except PufError as error:
            raise type(error)(f"{path}: {error.message}") from None
        shown.append((path, reopened, why))
    return state, shown


def _verify(store: Store) -> None:
    store.database.verify()
    with store.database.audit_log() as entries:
        audit_chain.follow(entries.lines())


def _install(work: Path, directory: Path, files: Files) -> None:
    """Gives a finished directory its name."""
    (work / "lock").unlink(missing_ok=True)
    for folder in (work / "models", work / "history", work):
        if folder.is_dir():
            sync_directory(folder, files)
    if directory.exists():
        directory.rmdir()
    files.rename(work, directory)
    sync_directory(directory.parent, files)


def _extract(source: Path, directory: Path, files: Files) -> dict[str, Any]:
    """Unpacks an archive and returns its list. Accepts known names only and compares every file with its digest."""
    found: dict[str, str] = {}
    made: dict[str, Any] = {}
    try:
        with tarfile.open(source, "r:") as tar:
            for entry in tar:
                body = tar.extractfile(entry) if entry.isreg() else None
                if body is None or not _known(entry.name) or entry.name in found:
                    raise StorageCorrupted(f"{source} holds {entry.name!r}, which is not part of a backup")
                if entry.name == LIST:
                    made = json.loads(body.read())
                else:
                    if not (folder := (directory / entry.name).parent).is_dir():
                        files.mkdir(folder)
                    found[entry.name] = _copy(body, directory / entry.name, files)
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


def _known(name: str) -> bool:
    return name in (*_REQUIRED, *OPTIONAL, LIST) or bool(_MODEL.fullmatch(name) or _HISTORY.fullmatch(name))


def _copy(body: IO[bytes], path: Path, files: Files) -> str:
    sha = hashlib.sha256()
    out = files.create(path)
    try:
        while block := body.read(1 << 20):
            sha.update(block)
            files.write(out, block)
        sync_file(out, path, files)
    finally:
        files.close(out)
    return sha.hexdigest()
