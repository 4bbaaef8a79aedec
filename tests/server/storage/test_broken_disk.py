"""A disk that is full, broken or has lost a file: a clear message, no damage, and work continues afterwards."""

from __future__ import annotations

import contextlib
import errno
import json
import resource
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tests.crash.workload import NAMES, Small, make, run
from tests.databases import sqlite
from tests.grpc.raw import Raw, status
from tests.running import make_state, running, tiny_config
from tests.server.local import Local

import puf_server.storage.database
from puf_common.config.exit_codes import Exit
from puf_common.errors import StorageCorrupted, Unavailable, UsageError
from puf_lab.federations.processes import wait_until
from puf_server import failpoints
from puf_server.cli.operator_client import OperatorClient
from puf_server.core.state.models import ModelStatus
from puf_server.storage.durable import Disk
from puf_server.storage.layout import spool_name

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The digests of all models of a federation without faults."""
    return run(tmp_path_factory.mktemp("undisturbed"))


def finished(small: Small) -> list[str]:
    small.to_the_end()
    found = [m.digest for m in small.state.models.values()]
    small.close()
    return found


def two_updates_in(directory: Path) -> Small:
    """The first round with the updates of two of three clients."""
    small = Small(directory)
    for name in (*NAMES, *NAMES[:2]):
        small._turn(name)
    assert small.state.round is not None
    # The client that joined last got work at once.
    assert len(small.state.round.received) >= 2
    return small


@pytest.mark.parametrize(
    "harm", [lambda p: p.unlink(), lambda p: p.write_bytes(b""), lambda p: p.write_bytes(bytes(56))]
)
def test_an_update_that_is_lost_is_asked_for_again(
    tmp_path: Path, digests: list[str], harm: Callable[[Path], object]
) -> None:
    small = two_updates_in(make(tmp_path))
    current = small.state.round
    assert current is not None
    key = min(current.received)
    harm(small.engine.store.layout.spool / spool_name(current, key))
    small.close()
    small = Small(tmp_path / "state")
    assert small.state.round is not None
    assert key in {assignment.key for assignment in small.state.round.missing}
    (facts,) = (
        sqlite(small.engine.store).execute("SELECT facts FROM audit WHERE event = 'round.update_lost'").fetchone()
    )
    assert json.loads(facts)["key"] == key
    assert finished(small) == digests


def test_an_update_that_is_lost_while_serving_does_not_stop_the_round(tmp_path: Path, digests: list[str]) -> None:
    small = two_updates_in(make(tmp_path))
    small._turn("c")
    current = small.engine.round_to_fold()
    assert current is not None
    (small.engine.store.layout.spool / spool_name(current, "a/main")).unlink()
    assert "changed while its updates were read" in small.engine.fold(current).failure
    assert small.engine.round_to_fold() is None
    assert finished(small) == digests


@pytest.mark.parametrize("harm", ["missing", "cut off", "the tensors need", "does not match its digest"])
def test_a_model_that_is_lost_is_named(tmp_path: Path, harm: str) -> None:
    small = Small(make(tmp_path))
    path = Path(small.engine.store.models.where(small.state.models[0]))
    small.close()
    content = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        last = bytes([content[-1] ^ 1]) if "digest" in harm else b""
        path.write_bytes(content[:40] if harm == "cut off" else content[:-1] + last)
    with pytest.raises(StorageCorrupted, match=harm) as caught:
        Small(tmp_path / "state")
    assert path.name in str(caught.value)
    path.write_bytes(content)
    Small(tmp_path / "state").close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    directory = make(tmp_path)
    for path in directory.glob("state.db*"):
        path.write_bytes(b"no database" * 100)
    with pytest.raises(StorageCorrupted, match=r"state\.db cannot be opened"):
        Small(directory)


def test_a_federation_exists_only_when_it_is_complete(tmp_path: Path) -> None:
    """After an interruption it can be made again in the same directory."""
    directory = make(tmp_path)
    (directory / "federation.json").unlink()
    assert finished(Small(make(tmp_path)))
    with pytest.raises(UsageError, match="already holds"):
        make(tmp_path)


@pytest.mark.parametrize("point", ["spool.write", "accept.before_persist", "audit.write", "model.write", "fold.end"])
@pytest.mark.parametrize("skip", [0, 2])
def test_a_full_disk_damages_nothing_and_work_continues_with_space(
    tmp_path: Path, digests: list[str], point: str, skip: int
) -> None:
    small = Small(make(tmp_path))
    failpoints.arm(f"{point}={skip}*off->3*enospc" if skip else f"{point}=3*enospc")
    refused = 0
    for _ in range(10):
        try:
            small.to_the_end()
        except (Unavailable, OSError) as error:
            refused += 1
            told = error.message if isinstance(error, Unavailable) else str(error)
            assert "disk is full" in told or "No space" in told
    assert 1 <= refused <= 3
    assert failpoints.hits(point) >= skip + 3
    assert finished(small) == digests
    assert not list((tmp_path / "state" / "spool").iterdir())
    assert not list((tmp_path / "state").rglob("*.part"))


def test_a_database_that_may_not_grow_is_a_full_disk(tmp_path: Path, digests: list[str]) -> None:
    small = Small(make(tmp_path))
    db = sqlite(small.engine.store)
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Unavailable, match="disk is full"):
        small.to_the_end()
    in_memory = small.state
    assert small.engine.store.load().members.keys() == in_memory.members.keys()
    db.execute(f"PRAGMA max_page_count = {2**30}")
    assert finished(small) == digests


def test_callers_of_a_server_with_a_full_disk_get_unavailable(tmp_path: Path) -> None:
    """Over gRPC: while spooling, while booking, and in the server's fold loop."""
    state = make_state(tmp_path / "state", tiny_config(plan={"rounds": 1}))
    with running(state) as server, Raw(server.port, "a") as a, Raw(server.port, "b") as b:
        for client in (a, b):
            client.join()
        for client, faults in ((a, ["spool.write", "audit.write"]), (b, [])):
            work = client.wait().train
            for fault in faults:
                failpoints.arm(f"{fault}=1*enospc")
                with pytest.raises(grpc.RpcError) as caught:
                    client.submit(work)
                assert status(caught.value)[0] == "UNAVAILABLE"
                assert "disk is full" in str(caught.value.details())
            if client is b:
                failpoints.arm("model.write=2*enospc;commit.train.before=2*enospc")
            client.submit(work)
        wait_until(lambda: server.engine.state.version == 1, 60)
        assert failpoints.hits("commit.train.before") == 3


def test_files_that_cannot_be_deleted_now_do_not_fail_the_caller(tmp_path: Path, digests: list[str]) -> None:
    small = Small(make(tmp_path))
    failpoints.arm("orphans.before_delete=2*eio")
    assert finished(small) == digests
    assert failpoints.hits("orphans.before_delete") > 2


@pytest.mark.parametrize("point", ["spool.before_fsync", "model.before_fsync"])
def test_a_failed_sync_ends_the_process_with_a_log_line(tmp_path: Path, digests: list[str], point: str) -> None:
    script = f"""
        from pathlib import Path
        from puf_common.logging import configure
        from puf_server import failpoints
        from tests.crash.workload import run
        configure(log_format="json")
        failpoints.arm("{point}=1*off->1*eio")
        run(Path({str(tmp_path)!r}))
    """
    words = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == Exit.FAILURE, done.stderr
    last = json.loads(done.stderr.splitlines()[-1])
    assert last["level"] == "critical"
    assert "sync failed" in last["event"]
    # The sync is not retried: the new file does not exist, the older ones do.
    assert finished(Small(tmp_path / "state")) == digests


def test_a_failed_sync_of_the_database_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(puf_server.storage.database, "end_process", lambda what, error: ended.append(what))
    for code, expected in (
        (sqlite3.SQLITE_IOERR_FSYNC, 1),
        (sqlite3.SQLITE_IOERR_DIR_FSYNC, 2),
        (sqlite3.SQLITE_BUSY, 2),
    ):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        assert isinstance(puf_server.storage.database.unsaved(error, Path("state.db")), Unavailable)
        assert len(ended) == expected


class Broken(Disk):
    """Syncs of directories fail."""

    def fsync_dir(self, directory: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")


def test_a_failed_sync_of_a_directory_ends_the_process_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def end(what: str, error: Exception) -> None:
        raise Ended

    monkeypatch.setattr("puf_server.storage.durable.end_process", end)
    with pytest.raises(Ended):
        make(tmp_path, Broken())


def test_the_operator_sees_what_is_retried(tmp_path: Path) -> None:
    with running(make_state(tmp_path / "state")) as server, Raw(server.port, "a") as a, Raw(server.port, "b") as b:
        a.join()
        b.join()
        failpoints.arm("fold.end=enospc")
        for client in (a, b):
            client.submit(client.wait().train)
        with OperatorClient(f"127.0.0.1:{server.operator_port}") as control:
            wait_until(lambda: "No space left" in control.status().trouble, 20)
            assert "round 1 cannot be summed" in control.status().trouble
            failpoints.disarm()
            wait_until(lambda: control.status().position.model_version == 1, 20)
            wait_until(lambda: control.status().trouble == "", 20)


@contextlib.contextmanager
def nothing_can_grow() -> Iterator[None]:
    """The kernel refuses to extend any file of this process."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_accepts_no_more_bytes(tmp_path: Path, digests: list[str]) -> None:
    """While joining, spooling, folding and committing: an error each time, no change, and work continues afterwards."""
    small = Small(make(tmp_path))
    with pytest.raises(Unavailable), nothing_can_grow():
        small._turn("a")
    assert not small.state.members
    for name in NAMES:
        small._turn(name)
    with pytest.raises(Unavailable, match="written"), nothing_can_grow():
        small._turn("a")
    for name in NAMES:
        small._turn(name)
    current = small.engine.round_to_fold()
    assert current is not None
    with pytest.raises(OSError, match="File too large"), nothing_can_grow():
        small.engine.fold(current)
    result = small.engine.fold(current)
    with pytest.raises(Unavailable), nothing_can_grow():
        small.engine.commit(result)
    assert small.state.version == 0
    small.engine.commit(result)
    assert small.state.version == 1
    assert finished(small) == digests


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes, if this process may mount one."""
    where = tmp_path / "mounted"
    where.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(where)]
    mounted = shutil.which("mount") and subprocess.run(words, capture_output=True, check=False).returncode == 0
    if not mounted:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def fill(where: Path) -> Path:
    """Fills the file system. Returns the file to delete."""
    ballast = where / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert shutil.disk_usage(where).free == 0
    return ballast


def test_a_disk_that_is_really_full(small_disk: Path, digests: list[str]) -> None:
    """Full before spooling, before booking and before folding; space is freed each time."""
    small = Small(make(small_disk))
    ballast = fill(small_disk)
    with pytest.raises(Unavailable, match="disk is full"):
        small._turn("a")
    ballast.unlink()
    for name in NAMES:
        small._turn(name)
    small.close()
    small = Small(small_disk / "state")
    ballast = fill(small_disk)
    with pytest.raises(Unavailable, match="disk is full"):
        small._turn("a")
    ballast.unlink()
    for name in ("a", "b", "c"):
        small._turn(name)
    current = small.engine.round_to_fold()
    assert current is not None
    ballast = fill(small_disk)
    with pytest.raises(OSError, match="No space"):
        small.engine.fold(current)
    ballast.unlink()
    result = small.engine.fold(current)
    small.close()
    small = Small(small_disk / "state")
    assert small.engine.round_to_fold() is not None
    result = small.engine.fold(current)
    ballast = fill(small_disk)
    with pytest.raises(Unavailable, match="disk is full"):
        small.engine.commit(result)
    assert small.state.version == 0
    ballast.unlink()
    small.engine.commit(result)
    assert [m.status for m in small.state.models.values()] == [ModelStatus.READY] * 2
    assert finished(small) == digests


def test_a_disk_that_the_log_of_the_database_fills_recovers_without_a_restart(small_disk: Path) -> None:
    """The log of 1,500 small transactions is larger than this disk."""
    local = Local(make_state(small_disk / "state"))
    refused = 0
    for number in range(1500):
        try:
            local.engine.call(lambda state, now: (state.note("test", now, text="x" * 200), None))
        except Unavailable:
            refused += 1
        if number % 10 == 0:
            local.engine.tick()
    assert refused == 0
    local.engine.close()


def test_a_full_disk_is_shown_and_recovers_without_a_restart(small_disk: Path) -> None:
    state = make_state(small_disk / "state", tiny_config(plan={"rounds": 1}))
    with (
        running(state) as server,
        Raw(server.port, "a") as a,
        Raw(server.port, "b") as b,
        OperatorClient(f"127.0.0.1:{server.operator_port}") as control,
    ):
        a.join()
        b.join()
        work = a.wait().train
        ballast = fill(small_disk)
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                a.submit(work)
            assert "disk is full" in str(caught.value.details())
        assert "disk is full" in control.status().trouble
        with Raw(server.port, "c") as c, pytest.raises(grpc.RpcError, match="disk is full"):
            c.join()
        ballast.unlink()
        a.submit(work)
        b.submit(b.wait().train)
        wait_until(lambda: control.status().position.model_version == 1, 20)
        wait_until(lambda: control.status().trouble == "", 20)


def test_refused_uploads_of_a_full_disk_are_shown_until_one_is_stored(tmp_path: Path) -> None:
    """There is room again as far as the file system says; only an upload that is stored shows that it can be used."""
    local = Local(make_state(tmp_path / "state"))
    local.join("a", "b")
    failpoints.arm("spool.write=1*enospc")
    with pytest.raises(Unavailable, match="disk is full"):
        local.submit("a")
    local.engine.tick()
    assert "disk is full" in local.engine.troubles.text()
    local.submit("a")
    assert local.engine.troubles.text() == ""
    local.engine.close()
