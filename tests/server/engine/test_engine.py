"""The engine without a network: fold, commit, restart, outdated folds, and slow work outside its lock."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.databases import sqlite
from tests.forgotten import OnDisk, trained_state
from tests.grpc.raw import update_bytes
from tests.running import make_state, tiny_config
from tests.server.local import Clock, Local

from puf_common.errors import InvalidUpdate
from puf_common.tensors.manifest import Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core.state.rounds import RoundPhase
from puf_server.engine.spool_checks import verify_spool
from puf_server.storage.durable import Disk, FileSource
from puf_server.storage.layout import spool_name


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "state", tiny_config(plan={"min_clients": 3, "rounds": 4}))


NAMES = ("a", "b", "c")


def run_rounds(local: Local, count: int) -> None:
    for _ in range(count):
        for name in NAMES:
            local.submit(name, 0.1 * (1 + NAMES.index(name)))
        local.engine.fold_ready()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_restart_between_any_two_steps_gives_the_same_bits(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    digests = []
    config = tiny_config(plan={"min_clients": 3, "rounds": 4})
    for restart in (False, True):
        # The run without restarts is one in SQLite.
        elsewhere = restart and database == "postgresql"
        where = request.getfixturevalue("postgres").address() if elsewhere else ""
        state = make_state(tmp_path / f"state-{restart}", config, database=where)
        clock = Clock()
        local = Local(state, clock, database=where)

        def again(
            old: Local, state: Path = state, clock: Clock = clock, restart: bool = restart, where: str = where
        ) -> Local:
            if not restart:
                return old
            old.engine.close()
            return Local(state, clock, database=where)

        for name in NAMES:
            local.join(name)
            local = again(local)
        for _ in range(3):
            for name in NAMES:
                local.submit(name, 0.1 * (1 + NAMES.index(name)))
                local = again(local)
            current = local.engine.round_to_fold()
            assert current is not None
            folded = local.engine.fold(current)
            # The model file exists and nothing is committed.
            local = again(local)
            if not restart:
                local.engine.commit(folded)
            local.engine.fold_ready()
            local = again(local)
        digests.append([m.digest for m in local.engine.state.models.values()])
        local.engine.close()
    assert digests[0] == digests[1]
    assert len(digests[0]) == 4


def test_updates_are_deleted_when_the_round_commits(state: Path) -> None:
    local = Local(state, Clock())
    local.join(*NAMES)
    local.submit("a", 0.1)
    assert len(local.spool()) == 1
    local.submit("b", 0.2)
    local.submit("c", 0.3)
    assert len(local.spool()) == 3
    local.engine.fold_ready()
    assert local.spool() == []
    local.engine.close()


def test_a_request_filed_during_the_fold_keeps_its_client_out_of_the_sum(state: Path) -> None:
    clock = Clock()
    local = Local(state, clock)
    local.join(*NAMES)
    run_rounds(local, 1)
    for name in NAMES:
        local.submit(name, 0.1 * 2.0 ** NAMES.index(name))
    current = local.engine.round_to_fold()
    assert current is not None
    outdated = local.engine.fold(current)
    request = tk.UnlearningRequest(request_key="k", scope=tk.SCOPE_CLIENT)
    local.handlers.tickets.file_unlearning("b", fed.FileUnlearningRequest(request=request))
    local.engine.commit(outdated)
    assert local.engine.state.version == 1
    assert [name.split(".")[2] for name in local.spool()] == ["a", "c"]
    local.engine.fold_ready()
    assert local.engine.state.version == 2
    assert local.engine.state.models[2].digest != outdated.digest
    assert local.engine.state.records[2].contributions == 2
    local.engine.close()


HALF = Manifest((TensorSpec("w", "f16", (4,)),))


def half(value: float) -> bytes:
    return np.full(4, value, np.float32).tobytes()


def test_a_sum_that_is_not_finite_excludes_the_client_that_caused_it(tmp_path: Path) -> None:
    """In a float16 model 65504 is the largest number: finite updates can have a sum that is not finite."""
    config = tiny_config(plan={"start_clients": 3, "rounds": 4})
    directory = make_state(tmp_path / "state", config, HALF, bytearray(np.full(4, 60000, np.float16).tobytes()))
    local = Local(directory, Clock())
    local.join(*NAMES)
    for name in NAMES:
        local.submit(name, payload=half(60000.0 if name == "b" else 1.0))
    local.engine.fold_ready()
    state = local.engine.state
    assert (state.version, state.halted) == (1, "")
    assert "tensor w would no longer be finite with the update of b" in (state.members["b"].on_hold or "")
    assert state.records[1].contributions == 2
    assert state.round is not None
    assert {s.client for s in state.round.assignments} == {"a", "c"}
    local.engine.close()
    again = Local(directory, Clock())
    assert again.engine.state.members["b"].on_hold
    again.engine.close()


def test_a_norm_far_beyond_recent_rounds_is_refused_also_after_a_restart(state: Path) -> None:
    local = Local(state, Clock())
    local.join(*NAMES)
    run_rounds(local, 1)
    local.engine.close()
    local = Local(state, Clock())
    local.submit("a", 1.9)
    with pytest.raises(InvalidUpdate, match=r"reaches 6\..*, the limit is 6.*layer\.weight"):
        local.submit("b", 2.1)
    assert len(local.spool()) == 2  # one of a, and the refused one
    local.engine.close()


def test_after_a_restart_clients_have_time_to_return_before_they_are_absent(state: Path) -> None:
    clock = Clock()
    local = Local(state, clock)
    local.join(*NAMES)
    local.submit("a", 0.1)
    local.engine.close()
    clock.now += 10_000
    local = Local(state, clock)
    assert local.engine.state.round is not None
    assert local.engine.state.round.phase is RoundPhase.COLLECTING
    assert len(local.engine.state.round.missing) == 2
    clock.now += local.engine.config.plan.absent_seconds + 1
    local.engine.tick()
    assert local.engine.state.round is not None
    local.engine.close()


def test_an_update_that_is_on_disk_but_not_booked_survives_the_booking_of_another(state: Path) -> None:
    local = Local(state, Clock())
    local.join(*NAMES)
    waiting = local.begin("a", 0.1)
    store = local.engine.store
    current = local.engine.state.round
    assert current is not None
    name = spool_name(current, "a/main", hashlib.sha256(update_bytes(0.1)).hexdigest())
    waiting.publish()
    local.submit("b", 0.2)
    assert (store.layout.spool / name).exists()
    local.engine.close()


class SlowReads(Disk):
    """A disk whose reads of the spool wait until the test lets them go."""

    def __init__(self) -> None:
        self.reading, self.may_read = threading.Event(), threading.Event()
        self.may_read.set()

    def read(self, path: Path, offset: int = 0) -> FileSource:
        if path.parent.name == "spool":
            self.reading.set()
            assert self.may_read.wait(20)
        return super().read(path, offset)


@pytest.fixture
def slow(state: Path) -> Iterator[tuple[Local, SlowReads]]:
    files = SlowReads()
    local = Local(state, files=files)
    local.join(*NAMES)
    yield local, files
    files.may_read.set()
    local.engine.close()


def test_the_spool_is_verified_while_calls_are_answered(slow: tuple[Local, SlowReads]) -> None:
    local, files = slow
    local.submit("a", 0.1)
    (name,) = local.spool()
    (local.engine.store.layout.spool / name).write_bytes(bytes(56))
    files.may_read.clear()
    with ThreadPoolExecutor(1) as pool:
        verifying = pool.submit(verify_spool, local.engine)
        assert files.reading.wait(20)
        # If this call waited for the disk, it would never return.
        local.engine.tick()
        local.submit("b", 0.2)
        files.may_read.set()
        verifying.result(20)
    assert local.engine.state.round is not None
    assert set(local.engine.state.round.received) == {"b/main"}


def test_an_update_whose_client_left_while_the_spool_was_verified_is_not_lost(slow: tuple[Local, SlowReads]) -> None:
    local, files = slow
    local.submit("a", 0.1)
    files.may_read.clear()
    with ThreadPoolExecutor(1) as pool:
        verifying = pool.submit(verify_spool, local.engine)
        assert files.reading.wait(20)
        local.forget("a")
        assert local.spool() == []
        files.may_read.set()
        verifying.result(20)
    events = [event for (event,) in sqlite(local.engine.store).execute("SELECT event FROM audit")]
    assert "round.update_lost" not in events


def test_a_fold_whose_files_a_request_deletes_is_outdated_and_no_disk_error(slow: tuple[Local, SlowReads]) -> None:
    local, files = slow
    for name in NAMES:
        local.submit(name, 0.1)
    current = local.engine.round_to_fold()
    assert current is not None
    files.may_read.clear()
    with ThreadPoolExecutor(1) as pool:
        folding = pool.submit(local.engine.fold, current)
        assert files.reading.wait(20)
        local.forget("b")
        files.may_read.set()
        result = folding.result(20)
    assert result.failure
    assert local.engine.commit(result) is False
    assert local.engine.state.version == 0
    assert not local.engine.state.halted
    local.engine.fold_ready()
    assert local.engine.state.records[1].contributions == 2


def test_a_lost_file_of_the_same_round_is_asked_for_again(state: Path) -> None:
    local = Local(state)
    local.join(*NAMES)
    for name in NAMES:
        local.submit(name, 0.1)
    current = local.engine.round_to_fold()
    assert current is not None
    (local.engine.store.layout.spool / spool_name(current, "b/main")).unlink()
    assert "changed while its updates were read" in local.engine.fold(current).failure
    assert local.engine.state.round is not None
    assert [missing.key for missing in local.engine.state.round.missing] == ["b/main"]
    local.engine.close()


def test_a_reader_of_an_old_state_delays_no_call_and_the_purge_follows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = trained_state(tmp_path / "state")
    with OnDisk(state) as f, closing(sqlite3.connect(state / "state.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM members").fetchone()
        # No statement of a call waits for another process or copies the log.
        pragmas = [
            sqlite(f.engine.store).execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("busy_timeout", "wal_autocheckpoint")
        ]
        assert pragmas == [0, 0]
        with caplog.at_level(logging.INFO):
            f.forget("cleo")
            for _ in range(20):
                f.engine.tick()
        log = state / "state.db-wal"
        assert log.stat().st_size > 0
        reports = [r for r in caplog.records if "the database's log" in r.getMessage()]
        assert [r.levelname for r in reports] == ["WARNING"]
        assert "another process reads an older state" in f.engine.troubles.text()
        reader.execute("COMMIT")
        f.engine.tick()
        assert log.stat().st_size == 0
        assert f.engine.troubles.text() == ""


def test_calls_are_answered_while_another_process_holds_the_writer_lock(state: Path) -> None:
    local = Local(state)
    local.join("a")
    writer = sqlite3.connect(state / "state.db", isolation_level=None, check_same_thread=False)
    with closing(writer), ThreadPoolExecutor(1) as pool:
        writer.execute("BEGIN IMMEDIATE")
        tried = threading.Event()
        sqlite(local.engine.store).set_trace_callback(lambda statement: tried.set() if "BEGIN" in statement else None)
        joining = pool.submit(local.join, "b")
        assert tried.wait(20)
        # While that call tries again, calls that write nothing are answered. They would wait for ever for a held lock.
        for _ in range(50):
            local.engine.tick()
            session = local.engine.state.members["a"].session
            local.handlers.heartbeat("a", fed.HeartbeatRequest(session=session))
        assert not joining.done()
        assert "b" not in local.engine.state.members
        writer.execute("ROLLBACK")
        joining.result(20)
    assert local.engine.state.members["b"].session
    local.engine.close()


def test_a_log_that_grows_is_emptied_outside_of_calls(state: Path) -> None:
    local = Local(state)
    log = state / "state.db-wal"
    while log.stat().st_size <= 1 << 18:
        local.engine.call(lambda s, now: (s.note("test", now, text="x" * 4000), None))
    local.engine.tick()
    assert log.stat().st_size == 0
    local.engine.close()


def test_a_completed_request_purges_the_log_at_once(tmp_path: Path) -> None:
    state = trained_state(tmp_path / "state")
    with OnDisk(state) as f:
        sizes: list[int] = []
        purge = f.engine.store.purge_free_pages

        def measured() -> bool:
            done = purge()
            sizes.append((state / "state.db-wal").stat().st_size)
            return done

        f.engine.store.purge_free_pages = measured  # type: ignore[method-assign]
        f.forget("cleo")
        assert sizes == [0]


def test_listeners_get_every_change_in_order(state: Path) -> None:
    local = Local(state)
    seen: list[tuple[int, int]] = []
    local.engine.subscribe(lambda before, after: seen.append((len(before.members), len(after.members))))
    local.join(*NAMES)
    local.engine.tick()
    assert seen == [(0, 1), (1, 2), (2, 3)]
    local.engine.close()


def test_an_event_is_logged_once(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    local = Local(state)
    with caplog.at_level(logging.INFO):
        local.join("a")
    assert len([r for r in caplog.records if "joined" in r.getMessage()]) == 1
    local.engine.close()
