"""Power cuts while a client writes its state, and while a backup is made or restored. Every single sync is needed."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.crash.recording import CrashState, Recorder, Site, crash_states
from tests.crash.workload import same_randomness
from tests.forgotten import trained_state
from tests.running import TINY, tiny_payload

import puf_server.maintenance.backup
from puf_client.state.directory import StateDirectory
from puf_client.state.usage import SampleUsage
from puf_common.errors import PufError
from puf_common.tensors import model_file
from puf_server.engine.engine import Engine
from puf_server.maintenance.backup import backup
from puf_server.maintenance.restore import restore
from puf_server.storage.state_store import Store

IDS = [f"patient-{i}" for i in range(6)]
KEY = bytes(range(32))
Workload = Callable[[Recorder], None]
Check = Callable[[Path, CrashState], None]


def client(recorder: Recorder) -> None:
    """All writes of a client. Each is acknowledged when it is done."""
    root = recorder.root / "clients"
    state = StateDirectory(root / "fed" / "anna", recorder)
    recorder.ack("key", state.request_key(IDS))
    state.prepare("r1", IDS[:2])
    recorder.ack("prepared", "r1")
    state.filed("r1", "t1")
    recorder.ack("excluded", 2)
    state.prepare("r2", IDS[2:3])
    state.filed("r2", "t2")
    recorder.ack("excluded", 3)
    state.withdrawing("r2", True)
    recorder.ack("withdrawing", "r2")
    usage = SampleUsage(state)
    usage.note(IDS, np.array([3, 4, 5]), number=4, unlearning=False)
    recorder.ack("used", 4)
    usage.note(IDS, np.array([3, 4, 5]), number=5, unlearning=False)
    recorder.ack("used", 5)
    state.pin_server_key(KEY)
    recorder.ack("pinned")
    state.write_receipt("t1", b"receipt")
    recorder.ack("receipt")
    state.mark_forgotten(membership=1, ticket_id="t9")
    recorder.ack("forgotten")
    model_file.save(recorder.root / "model.safetensors", TINY, tiny_payload(), {}, recorder)
    recorder.ack("model")


def client_keeps_its_word(root: Path, crash: CrashState) -> None:
    state = StateDirectory(root / "clients" / "fed" / "anna")
    for kind, *fact in crash.facts:
        if kind == "key":
            assert state.request_key(IDS) == fact[0], "the same samples have another key now"
        elif kind == "prepared":
            assert state.exclusion(str(fact[0])) is not None, fact
        elif kind == "excluded":
            assert int(state.excluded(IDS).sum()) >= int(str(fact[0])), fact
        elif kind == "withdrawing":
            kept = state.exclusion(str(fact[0]))
            assert kept is not None
            assert kept.withdrawing, fact
        elif kind == "used":
            used = SampleUsage(state).look_up(IDS[4])
            assert used is not None, fact
            assert used.trained is not None
            assert used.trained[1] >= int(str(fact[0])), fact
        elif kind == "pinned":
            assert state.server_key == KEY
        elif kind == "receipt":
            assert state.receipts() == [b"receipt"]
        elif kind == "forgotten":
            assert state.forgotten is not None
        elif kind == "model":
            assert model_file.read_payload(root / "model.safetensors") == tiny_payload()
    # The files can be read and written again.
    if (root / "model.safetensors").exists():
        assert model_file.read_payload(root / "model.safetensors") == tiny_payload()
    state.exclusions()
    state.prepare("r3", IDS[5:])
    assert state.filed("r3", "t3").effective
    assert state.excluded(IDS)[5]
    SampleUsage(state).note(IDS, np.array([0]), number=9, unlearning=True)
    SampleUsage(state).look_up(IDS[0])


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory if possible: these tests do not depend on the disk."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="puf-crash-", dir=shm if shm.is_dir() else None) as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_state(tmp_path_factory.mktemp("trained") / "state")


class Backing:
    """One backup of a federation outside the recorded directory. Its audit log is the database of the states."""

    def __init__(self, trained: Path) -> None:
        self.trained = trained

    def __call__(self, recorder: Recorder) -> None:
        source = recorder.root.parent / "source"
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(self.trained, source)
        recorder.mkdir(recorder.root / "state")
        recorder.fsync_dir(recorder.root)
        note = puf_server.maintenance.backup._record

        def noted(db: sqlite3.Connection, *facts: object) -> None:
            note(db, *facts)  # type: ignore[arg-type]
            recorder.commit(db.serialize())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(puf_server.maintenance.backup, "_record", noted)
            made = backup(source, recorder.root / "b.tar", 1000.0, recorder)
        recorder.ack("made", made.digest)


def backups_are_whole_and_told_of(root: Path, crash: CrashState) -> None:
    there = root / "b.tar"
    for _, digest in crash.facts:
        assert there.exists(), "an acknowledged backup is gone"
        assert hashlib.sha256(there.read_bytes()).hexdigest() == digest
    if there.exists():
        listed = []
        if (root / "state" / "state.db").exists():
            with sqlite3.connect(root / "state" / "state.db") as db:
                listed = [
                    json.loads(f)["digest"]
                    for (f,) in db.execute("SELECT facts FROM audit WHERE event = 'backup.made'")
                ]
            db.close()
        assert listed, "a backup exists that no receipt could tell of"
        assert hashlib.sha256(there.read_bytes()).hexdigest() == listed[0], "a backup has its name and is not whole"


class Restoring:
    def __init__(self, trained: Path, scratch: Path) -> None:
        self.file = scratch / "b.tar"
        backup(trained, self.file)

    def __call__(self, recorder: Recorder) -> None:
        restore(self.file, recorder.root / "deep" / "er" / "new", now=1000.0, waived=True, files=recorder)
        recorder.ack("restored")


def restored_is_whole(root: Path, crash: CrashState) -> None:
    directory = root / "deep" / "er" / "new"
    if not directory.exists():
        assert not crash.facts, "an acknowledged restore is gone"
        return
    engine = Engine(Store.open(directory), lambda: 2000.0)
    assert (engine.state.version, engine.state.number) == (2, 2)
    engine.close()


@pytest.fixture(params=["client", "backup", "restore"])
def case(request: pytest.FixtureRequest, trained: Path, scratch: Path) -> Iterator[tuple[Workload, Check]]:
    if request.param == "client":
        yield client, client_keeps_its_word
    elif request.param == "backup":
        yield Backing(trained), backups_are_whole_and_told_of
    else:
        yield Restoring(trained, scratch), restored_is_whole


def recorded(workload: Workload, root: Path, without: Site | None = None) -> Recorder:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    recorder = Recorder(root, without)
    with same_randomness():
        workload(recorder)
    return recorder


def broken(recorder: Recorder, check: Check, scratch: Path) -> tuple[int, str]:
    """The number of different crash states, and the first one with a violation."""
    seen: set[bytes] = set()
    for crash in crash_states(recorder.ops):
        if crash.signature in seen:
            continue
        seen.add(crash.signature)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        crash.build(scratch)
        try:
            check(scratch, crash)
        except (AssertionError, PufError, OSError, sqlite3.Error) as error:
            return len(seen), f"after {crash.prefix} operations, {crash.variant}: {error}"
    return len(seen), ""


def test_every_crash_state_keeps_acknowledged_facts(case: tuple[Workload, Check], scratch: Path) -> None:
    workload, check = case
    states, found = broken(recorded(workload, scratch / "run"), check, scratch / "rebuilt")
    assert not found
    assert states > 10


def test_omitting_any_sync_is_detected(case: tuple[Workload, Check], scratch: Path) -> None:
    workload, check = case
    sites = dict(recorded(workload, scratch / "run").sites)
    assert len(sites) >= 2
    missed = []
    for site in sites:
        _, found = broken(recorded(workload, scratch / "run", site), check, scratch / "rebuilt")
        print(*site, "->", found or "NOT CAUGHT")
        if not found:
            missed.append(site)
    assert not missed
