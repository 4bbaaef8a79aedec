"""Which files are deleted because no record names them, also while the state changes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.running import make_state, tiny_config
from tests.server.local import Local

from puf_common.errors import Unavailable
from puf_server.core.state.state import State
from puf_server.engine import receipts
from puf_server.storage.directory_files import DirectoryFiles
from puf_server.storage.durable import Disk
from puf_server.storage.layout import Layout, spool_name
from puf_server.storage.orphans import delete_orphans

NAMES = ("a", "b", "c")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    for folder in ("models", "spool", "history"):
        (tmp_path / folder).mkdir()
    return Layout(tmp_path)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class Publishing(Disk):
    """A disk on which a file appears after a folder was listed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def listdir(self, directory: Path) -> list[str]:
        found = super().listdir(directory)
        if directory == self._path.parent:
            self._path.write_bytes(b"")
        return found


def test_a_file_that_is_published_during_the_deletion_stays(layout: Layout) -> None:
    late = layout.spool / "9.1.a.main.ff"
    (layout.spool / "1.1.a.main.ff").write_bytes(b"")
    delete_orphans(DirectoryFiles(layout.directory, Publishing(late)), State)
    assert files(layout.spool) == {late.name}


def test_the_state_is_read_after_the_files_are_listed(layout: Layout) -> None:
    """A model that is committed between both is named by the state that decides."""
    order: list[str] = []

    class Listing(Disk):
        def listdir(self, directory: Path) -> list[str]:
            order.append(directory.name)
            return super().listdir(directory)

    def newest() -> State:
        order.append("state")
        return State()

    delete_orphans(DirectoryFiles(layout.directory, Listing()), newest)
    assert order == ["models", "spool", "history", "state"]


def test_files_being_written_stay_until_a_start(tmp_path: Path) -> None:
    local = Local(make_state(tmp_path / "state", tiny_config(plan={"min_clients": 3})))
    local.join(*NAMES)
    state, layout = local.engine.state, local.engine.store.layout
    assert state.round is not None
    layout.history.mkdir()
    expected = {
        layout.spool: {spool_name(state.round, "a/main", "f" * 64), "x.part"},
        layout.models: {"v000001-ff.safetensors", "v000001.part"},
        layout.history: {"00000001.sums.a.1-ff"},
    }
    orphans = {
        layout.spool: {"1.2.a.main.ff", spool_name(state.round, "d/main", "f" * 64)},
        layout.models: {"v000002-ff.safetensors"},
        layout.history: {"00000002.sums.a.1-ff"},
    }
    kept = files(layout.models)
    for folder in expected:
        for name in expected[folder] | orphans[folder]:
            (folder / name).write_bytes(b"")
    local.engine.delete_orphans()
    assert files(layout.spool) == expected[layout.spool]
    assert files(layout.models) == expected[layout.models] | kept
    assert files(layout.history) == expected[layout.history]
    local.engine.close()
    again = Local(layout.directory)
    assert (files(layout.spool), files(layout.models), files(layout.history)) == (set(), kept, set())
    again.engine.close()


class SlowDeletes(Disk):
    """A disk whose deletions in the spool wait, once armed, until the test lets them go."""

    def __init__(self) -> None:
        self.armed = False
        self.deleting, self.may_delete = threading.Event(), threading.Event()

    def unlink(self, path: Path) -> None:
        if path.parent.name == "spool" and self.armed:
            self.deleting.set()
            assert self.may_delete.wait(20)
        super().unlink(path)


def test_files_are_deleted_while_calls_are_answered(tmp_path: Path) -> None:
    disk = SlowDeletes()
    local = Local(make_state(tmp_path / "state", tiny_config(plan={"min_clients": 3})), files=disk)
    local.join(*NAMES)
    local.submit("a", 0.1)
    disk.armed = True
    with ThreadPoolExecutor(1) as pool:
        filing = pool.submit(local.forget, "a")
        assert disk.deleting.wait(20)
        local.engine.call(lambda state, now: (replace(state, planned=7), None))
        assert local.engine.state.planned == 7
        disk.may_delete.set()
        filing.result(20)
    assert local.spool() == []
    local.engine.close()


class FailingDeletes(Disk):
    """A disk on which models cannot be deleted while it is armed."""

    armed = True

    def unlink(self, path: Path) -> None:
        if path.parent.name == "models" and path.suffix == ".safetensors" and self.armed:
            raise PermissionError(13, "not allowed by the test")
        super().unlink(path)


def test_no_receipt_is_issued_while_withdrawn_models_are_not_deleted(tmp_path: Path) -> None:
    disk, config = FailingDeletes(), tiny_config(plan={"rounds": 1}, forgetting={"blind_recovery_rounds": 1})
    local = Local(make_state(tmp_path / "state", config), files=disk)
    local.join("a", "b")
    for name in ("a", "b"):
        local.submit(name, 0.1)
    local.engine.fold_ready()
    ticket = local.forget("b")
    while local.engine.state.tickets[ticket].state != "completed":
        for name in ("a", "b"):
            session = local.engine.state.members[name].session
            if session and local.handlers.work(name, session) is not None:
                local.submit(name, 0.1)
        local.engine.fold_ready()
    assert "not allowed by the test" in local.engine.troubles.text()
    with pytest.raises(Unavailable, match="not deleted yet"):
        receipts.issue(local.engine, ticket)
    disk.armed = False
    local.engine.delete_orphans()
    assert local.engine.troubles.text() == ""
    assert receipts.issue(local.engine, ticket)
    local.engine.close()
