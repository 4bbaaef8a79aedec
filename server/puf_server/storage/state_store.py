"""A federation that is open for serving: its directory of files and its database.

A change is one transaction of the database. A file is durable before a transaction names it, and is deleted after the
transaction that no longer does.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO

from puf_common import audit_chain
from puf_common.audit_chain import Head
from puf_common.errors import Mismatch, StorageCorrupted
from puf_common.files.private import write_new
from puf_common.receipts.signing_key import SigningKey, fingerprint
from puf_common.tensors.manifest import MODEL, Manifest
from puf_server.core.config import FederationConfig
from puf_server.core.state.presence import DiskSpace
from puf_server.core.state.rounds import Round
from puf_server.core.state.state import AuditNote, State
from puf_server.storage import federation_file
from puf_server.storage.completed_mark import CompletedMark
from puf_server.storage.difference_files import DifferenceFiles
from puf_server.storage.directory_files import DirectoryFiles
from puf_server.storage.durable import DISK, Files
from puf_server.storage.layout import HISTORY, KEY_FILE, Layout, history_name
from puf_server.storage.model_files import ModelFiles
from puf_server.storage.orphans import delete_orphans, unfinished_elsewhere
from puf_server.storage.simulated import LaterRecords, UpdatesInMemory
from puf_server.storage.spool import Spool
from puf_server.storage.sqlite_database import SqliteDatabase
from puf_server.storage.state_database import IDENTITY, SIGNING_KEY, AlreadyServed, StateDatabase
from puf_server.storage.state_rows import TIME
from puf_server.storage.stored_files import StoredFiles


class Store:
    """An open federation. The caller must not use the database from two threads at the same time."""

    key: SigningKey

    def __init__(
        self,
        layout: Layout,
        config: FederationConfig,
        manifest: Manifest,
        database: StateDatabase,
        disk: Files,
        files: StoredFiles | None = None,
    ) -> None:
        """`files` are the federation's files where the directory does not have them."""
        self.layout = layout
        self.directory = layout.directory
        self.config = config
        self.manifest = manifest
        self.database = database
        self._disk = disk
        self.files = files or DirectoryFiles(layout.directory, disk, database.owner)
        self.models = ModelFiles(self.files, manifest)
        self.differences = DifferenceFiles(self.files, manifest, self.models)
        # An object store does not show files that are being written: no process sees those of others.
        self.spool = Spool(self.files, database.owner if files is None else "")
        # Held while a server serves the directory.
        self._lock: IO[str] | None = None
        # None: the database lies in the directory and is restored with it.
        self._mark: CompletedMark | None = None

    @classmethod
    def open(cls, directory: Path, files: Files = DISK, *, database: str = "") -> Store:
        """Opens a federation for serving. With `files` that are not durable, updates stay in memory.

        `database` is the address of a PostgreSQL database, whose state several processes may serve; empty: the state is in
        the directory. Raises where another process serves that.
        """
        config, manifest = federation_file.read(directory, database)
        layout, identity = Layout(directory), federation_file.identity(config, manifest)
        with ExitStack() as stack:
            opened: StateDatabase
            lock = None
            if database:
                from puf_server.storage.postgres_database import PostgresDatabase

                opened = stack.enter_context(closing(PostgresDatabase.open(database)))
            else:
                lock = stack.enter_context(_locked(layout))
                kind = SqliteDatabase if files.durable else LaterRecords
                opened = stack.enter_context(closing(kind.open(layout.database, identity, durable=files.durable)))
            stored = _objects(directory)
            if not files.durable:
                stored = UpdatesInMemory(stored or DirectoryFiles(directory, files))
            store = cls(layout, config, manifest, opened, files, stored)
            store._lock = lock
            federation_file.require_same(json.loads(opened.meta(IDENTITY) or "{}"), identity, directory)
            store.key = store._signing_key()
            if database:
                store._mark = CompletedMark(store.files)
                if not store.joined:
                    store._compare_mark()
            stack.pop_all()
        return store

    @property
    def joined(self) -> bool:
        """Whether other processes served the federation when this one opened it."""
        return self.database.joined

    def disk_space(self) -> DiskSpace | None:
        beside = 2 if self.config.plan.step_encoding == "i8" else 0
        free = self.files.free_bytes()
        return None if free is None else DiskSpace(free=free, update=self.manifest.nbytes(MODEL), beside=beside)

    def _compare_mark(self) -> None:
        """Asks for receipts where the database was restored to a moment before a completed request."""
        assert self._mark is not None
        with self.database.audit_log() as log:
            known, head = self._mark.read(), log.head()
            found = log.after(known.number - 1, 1)
        if known.number and [(e.number, e.hash) for e in found] != [(known.number, known.hash)]:
            facts = {"line": head.number, "completed_line": known.number}
            note = AuditNote(event="database.restored", at=time.time(), facts=facts)
            self.database.put_meta({"awaits_receipts": "yes"}, note)
            # Otherwise every start would ask again.
            self._mark.write(audit_chain.EMPTY)

    def mark_completed(self) -> None:
        """Notes beside the database that a request was completed. A restored database is recognised by that."""
        if self._mark is not None:
            # Another process may complete a later request, and this one then replace its mark: look again.
            while self._mark.read().number < (head := self._audit_head()).number:
                self._mark.write(head)

    def _audit_head(self) -> Head:
        with self.database.audit_log() as log:
            return log.head()

    def await_receipts(self, wanted: bool) -> None:
        """Stores whether this state comes from a backup and the operator has not shown the receipts issued since."""
        self.database.put_meta({"awaits_receipts": "yes" if wanted else None})

    @property
    def awaits_receipts(self) -> bool:
        return self.database.meta("awaits_receipts") is not None

    def _signing_key(self) -> SigningKey:
        """The federation's signing key. A directory from before there were receipts gets one here."""
        path = self.layout.signing_key
        known = self.database.meta(SIGNING_KEY)
        if known is None and not path.exists():
            write_new(path, SigningKey.generate().to_pem(), files=self._disk)
        try:
            key = SigningKey.from_pem(path.read_bytes())
        except FileNotFoundError:
            raise StorageCorrupted(
                f"{path} is missing: receipts cannot be signed; bring it back from a backup"
            ) from None
        if known is None:
            facts = {"key": fingerprint(key.public)}
            note = AuditNote(event="federation.key_made", at=time.time(), facts=facts)
            self.database.put_meta({SIGNING_KEY: key.public.hex()}, note)
        elif known != key.public.hex():
            ours = fingerprint(bytes.fromhex(known))
            raise Mismatch(f"{path} holds another key ({fingerprint(key.public)}) than this federation's ({ours})")
        return key

    def close(self) -> None:
        self.database.close()
        if self._lock is not None:
            self._lock.close()

    def load(self) -> State:
        return self.database.load()

    def newer(self, known: State) -> State | None:
        """The newest state if another process has changed `known`; else None."""
        return self.database.newer(known)

    def never_wait(self) -> None:
        self.database.never_wait()

    def last_time(self) -> float | None:
        """The time that a server recorded last; None in directories of older versions."""
        stored = self.database.meta(TIME)
        return None if stored is None else float(stored)

    def record_time(self, now: float) -> bool:
        """Stores the federation's time. Always writes."""
        self.database.put_meta({TIME: repr(now)})
        return True

    def save(self, before: State | None, after: State, now: float | None = None, fold: int | None = None) -> bool:
        """Writes the difference between two states and the new audit lines in one transaction. False: there is none.

        `now` is recorded as the federation's time in the same transaction. `fold` is the right to fold that it needs.
        """
        return self.database.save(before, after, now, fold)

    def log_bytes(self) -> int:
        """The length of the database's write-ahead log."""
        return self.database.log_bytes()

    def purge_free_pages(self) -> bool:
        return self.database.purge()

    def require_files(self, state: State) -> None:
        """Raises where a file that a record of `state` names is missing or damaged. Updates are not checked."""
        for record in state.history.values():
            name = f"{HISTORY}/{history_name(record)}"
            if record.digest and not self.files.exists(name):
                raise StorageCorrupted(f"{self.files.where(name)} is missing; bring it back from a backup")
        self.models.require(state)

    def damaged_updates(self, current: Round | None) -> dict[str, str]:
        return self.spool.damaged(current)

    def audit_fault(self) -> str:
        """The first entry of the audit log that is not as it was written; empty if there is none."""
        try:
            with self.database.audit_log() as log:
                audit_chain.follow(log.lines())
        except StorageCorrupted as error:
            return error.message
        return ""

    def delete_update(self, current: Round, key: str) -> None:
        self.spool.delete(current, key)

    def delete_orphans(self, newest: Callable[[], State], *, everything: bool = False) -> None:
        delete_orphans(self.files, newest, self.database.is_gone, everything=everything)

    def unfinished_elsewhere(self, state: State, gone: str) -> list[str]:
        """Files that other processes did not finish and that may contain what was forgotten, also of `gone`."""
        owner = self.database.owner
        return unfinished_elsewhere(self.files, state, owner, gone) if owner else []


def _objects(directory: Path) -> StoredFiles | None:
    """The federation's files in an object store; None: the directory has them."""
    url = federation_file.objects(directory)
    if not url:
        return None
    from puf_server.storage.object_files import ObjectFiles

    files = ObjectFiles(url, directory)
    files.refuse_keeping()
    return files


def _locked(layout: Layout) -> IO[str]:
    """The lock of a directory. Raises where another process holds it."""
    with ExitStack() as stack:
        lock = stack.enter_context(layout.lock.open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyServed(f"another server serves {layout.directory}; stop it first") from None
        stack.pop_all()
    return lock


def key_fingerprint(directory: Path) -> str:
    """The fingerprint of the key that signs receipts. The operator publishes it."""
    return fingerprint(SigningKey.from_pem((directory / KEY_FILE).read_bytes()).public)
