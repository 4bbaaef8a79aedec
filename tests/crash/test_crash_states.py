"""Power cuts at every operation. The checks detect every omitted sync and every wrong order."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.crash.checking import Checker, Violation
from tests.crash.recording import Recorder, Site, crash_states
from tests.crash.workload import run, same_randomness

from puf_common.v1 import federation_pb2 as fed
from puf_server.aggregation.folder import FoldResult
from puf_server.core.state.state import State
from puf_server.engine.engine import Engine
from puf_server.ingest.upload import Upload
from puf_server.rpc.requests import Handlers
from puf_server.storage.durable import NewFile
from puf_server.storage.model_files import ModelFiles
from puf_server.storage.sqlite_database import SqliteDatabase
from puf_server.storage.state_store import Store


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A directory in memory if possible: there are thousands of directories, and the disk does not matter."""
    shm = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="puf-crash-", dir=shm if shm.is_dir() else None))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


class Enumeration:
    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._good: set[bytes] = set()
        self.recorder = self.record()
        self.checker = Checker(scratch / "rebuilt", self.digests)
        for crash in crash_states(self.recorder.ops):
            if crash.signature not in self._good:
                self.checker.check(crash)
                self._good.add(crash.signature)

    @property
    def states(self) -> int:
        return len(self._good)

    def record(self, without: Site | None = None, *, early: bool = False) -> Recorder:
        """The recording of one run. `early`: the OK is sent before the update is recorded."""
        root = self._scratch / "run"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        recorder = Recorder(root, without)

        def in_service() -> None:
            recorder.phase = "run"

        with same_randomness(), _commits(recorder), _early(recorder) if early else _nothing():
            self.digests = run(root, recorder, recorder.ack, in_service)
        return recorder

    def violation(self, recorder: Recorder) -> str:
        """The first crash state of this run with a violation. States of the correct run are skipped."""
        for crash in crash_states(recorder.ops):
            if crash.signature not in self._good:
                try:
                    self.checker.check(crash)
                except Violation as found:
                    return str(found)
        return ""


@pytest.fixture(scope="module")
def enumeration(scratch: Path) -> Enumeration:
    return Enumeration(scratch)


def test_every_crash_state_keeps_acknowledged_facts_and_ends_with_the_same_weights(
    enumeration: Enumeration,
) -> None:
    kinds = {op.kind for op in enumeration.recorder.ops}
    assert kinds == {"mkdir", "create", "write", "fsync", "rename", "fsync_dir", "unlink", "commit", "ack"}
    print(f"{len(enumeration.recorder.ops)} operations, {enumeration.states} crash states, ", end="")
    print(f"{enumeration.checker.finished} of them different after recovery")
    assert enumeration.states > 300
    assert enumeration.checker.finished > 20


def test_the_order_is_data_names_commit_then_deletion(enumeration: Enumeration) -> None:
    """The order of operations for one update and one model."""
    ops = enumeration.recorder.ops
    for folder, until in (("spool", "ack"), ("models", "unlink")):
        begin = max(i for i, op in enumerate(ops) if op.kind == "create" and op.path.startswith(f"state/{folder}/"))
        inode = ops[begin].inode
        kinds = [
            op.kind
            for op in ops[begin:]
            if op.inode == inode or op.kind in ("commit", "ack", "unlink") or op.path == f"state/{folder}"
        ]
        order = [k for k, before in zip(kinds, ["", *kinds], strict=False) if k != before]
        assert order[:6] == ["create", "write", "fsync", "rename", "fsync_dir", "commit"], folder
        assert until in order[6:]


def test_omitting_any_sync_is_detected(enumeration: Enumeration) -> None:
    sites = dict(enumeration.recorder.sites)
    caught = {site: enumeration.violation(enumeration.record(site)) for site in sites}
    for site, found in caught.items():
        print(*site, "->", found.splitlines()[0] if found else "NOT CAUGHT")
    # Spool, models, history, and the directory itself, each with its names.
    assert len(sites) >= 16
    assert not [site for site, found in caught.items() if not found]


def recorded_before_it_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    finish, publish = Handlers.finish_upload, NewFile.publish
    held: list[tuple[NewFile, Path]] = []

    def rename_only(self: NewFile, target: Path, *, replace: bool = True) -> None:
        if target.parent.name != "spool":
            return publish(self, target, replace=replace)
        self._files.rename(self.path, target)
        held.append((self, target))
        return None

    def finish_then_sync(self: Handlers, upload: Upload) -> fed.SubmitUpdateReply:
        reply = finish(self, upload)
        for file, target in held:
            file._files.fsync(file.handle)
            file._close()
            file._files.fsync_dir(target.parent)
        held.clear()
        return reply

    patch.setattr(NewFile, "publish", rename_only)
    patch.setattr(Handlers, "finish_upload", finish_then_sync)


def committed_before_the_model_is_there(patch: pytest.MonkeyPatch) -> None:
    publish, commit = ModelFiles.publish, Engine.commit
    held: list[tuple[Any, ...]] = []
    patch.setattr(ModelFiles, "publish", lambda *call: held.append(call))

    def commit_then_publish(self: Engine, result: FoldResult, *right: Any) -> None:
        commit(self, result, *right)
        while held:
            publish(*held.pop())

    patch.setattr(Engine, "commit", commit_then_publish)


def deleted_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    save = Store.save

    def sweep_then_save(self: Store, before: State | None, after: State, *more: Any) -> bool:
        if before is not None:
            self.delete_orphans(lambda: after)
        return save(self, before, after, *more)

    patch.setattr(Store, "save", sweep_then_save)


@pytest.mark.parametrize(
    "mutant", [recorded_before_it_is_on_disk, committed_before_the_model_is_there, deleted_before_the_commit]
)
def test_a_wrong_order_is_detected(enumeration: Enumeration, mutant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        recorder = enumeration.record()
    assert enumeration.violation(recorder)


def test_an_ok_before_recording_is_detected(enumeration: Enumeration) -> None:
    assert "is lost" in enumeration.violation(enumeration.record(early=True))


@contextmanager
def _commits(recorder: Recorder) -> Iterator[None]:
    """Records every commit with the database after it."""
    save = SqliteDatabase.save

    def recorded(self: SqliteDatabase, *change: Any) -> bool:
        changes = self.db.total_changes
        written = save(self, *change)
        if self.db.total_changes != changes:
            recorder.commit(self.db.serialize())
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteDatabase, "save", recorded)
        yield


@contextmanager
def _early(recorder: Recorder) -> Iterator[None]:
    finish = Handlers.finish_upload

    def told_first(self: Handlers, upload: Upload) -> fed.SubmitUpdateReply:
        client, _, number, attempt, part, digest = upload.key
        recorder.ack("update", number, attempt, f"{client}/{part}", digest.hex())
        return finish(self, upload)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handlers, "finish_upload", told_first)
        yield


@contextmanager
def _nothing() -> Iterator[None]:
    yield
