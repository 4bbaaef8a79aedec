"""Several processes serve one federation in PostgreSQL. Each `Local` here is one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.databases import audit_entries
from tests.grpc.raw import update_bytes
from tests.postgres import Postgres
from tests.running import make_state
from tests.server.engine.processes import NAMES, exchange, until
from tests.server.local import Local

from puf_common.errors import Unavailable
from puf_common.v1 import federation_pb2 as fed
from puf_server.core import operations, roster
from puf_server.core.state.rounds import Round
from puf_server.core.state.state import State
from puf_server.rpc import messages
from puf_server.storage import postgres_exchange, postgres_servers
from puf_server.storage.postgres_tables import LOCK
from puf_server.storage.state_database import AlreadyServed, DatabaseBusy, FoldLost
from puf_server.storage.state_store import Store


def test_every_process_changes_the_state_and_hears_of_the_others(start: Callable[[], Local]) -> None:
    one, two = start(), start()
    one.join("a")
    until(lambda: "a" in two.engine.state.members)
    two.join("b", "c")
    until(lambda: one.engine.state.round is not None and one.engine.state == two.engine.state)
    one.submit("a", 0.1)
    two.submit("b", 0.1)
    one.submit("c", 0.1)
    two.engine.catch_up()
    two.engine.fold_ready()
    until(lambda: one.engine.state.version == 1)
    assert one.engine.store.audit_fault() == ""
    assert [e.event for e in audit_entries(one.engine.store)].count("round.committed") == 1


def test_a_lost_notice_does_not_hide_a_change(start: Callable[[], Local], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_servers, "EXCHANGE_SECONDS", 0.05)
    one, two = start(), start()
    listening = two.engine.store.database._servers._db  # type: ignore[attr-defined]
    listening.execute("UNLISTEN *")
    one.join("a")
    until(lambda: "a" in two.engine.state.members)


def test_changes_at_the_same_time_are_all_applied(start: Callable[[], Local]) -> None:
    processes = [start() for _ in range(3)]

    def extend(local: Local) -> None:
        for _ in range(10):
            local.engine.call(lambda state, now: (operations.extend(state, 1, now), None))

    threads = [threading.Thread(target=extend, args=(local,)) for local in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    processes[0].engine.catch_up()
    assert processes[0].engine.state.planned == 4 + 30
    assert processes[0].engine.store.audit_fault() == ""


def test_a_call_that_an_older_state_would_refuse_reads_the_newest_one(
    start: Callable[[], Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = start(), start()
    monkeypatch.setattr("puf_server.engine.sharing.Sharing.changed", lambda self: None)
    one.join("a")
    session = one.engine.state.members["a"].session
    assert "a" not in two.engine.state.members
    two.handlers.heartbeat("a", fed.HeartbeatRequest(session=session))
    assert two.engine.state.members["a"].session == session


def test_nothing_is_refused_because_of_an_older_state_while_the_database_is_away(
    start: Callable[[], Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = start(), start()
    monkeypatch.setattr("puf_server.engine.sharing.Sharing.changed", lambda self: None)
    one.join(*NAMES)
    header = messages.update_header(one.header("a", update_bytes(0.1)))

    def away(known: State) -> State | None:
        raise DatabaseBusy("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(two.engine.store, "newer", away)
        with pytest.raises(Unavailable, match="connection was lost"):
            two.engine.newest(lambda: two.handlers.uploads.begin("a", header))
        with pytest.raises(Unavailable, match="connection was lost"):
            two.handlers.heartbeat("a", fed.HeartbeatRequest(session=one.engine.state.members["a"].session))
    begun = two.engine.newest(lambda: two.handlers.uploads.begin("a", header))
    assert begun is not None
    begun.discard()


def test_work_that_another_process_gave_is_not_abandoned(
    start: Callable[[], Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = start(), start()
    one.join(*NAMES)
    two.engine.catch_up()
    monkeypatch.setattr("puf_server.engine.sharing.Sharing.changed", lambda self: None)
    for name in NAMES:
        one.submit(name, 0.1)
    one.engine.fold_ready()
    session = one.engine.state.members["a"].session
    work = one.handlers.work("a", session)
    assert work is not None
    beat = fed.HeartbeatRequest(session=session, training_id=work.train.training_id)
    assert two.engine.state.version == 0
    assert not two.handlers.heartbeat("a", beat).abandon_training


def test_a_worker_that_one_process_hears_is_alive_for_all(start: Callable[[], Local]) -> None:
    one, two = start(), start()
    one.join(*NAMES)
    two.engine.catch_up()
    config = one.engine.config

    def alive(local: Local) -> set[str]:
        presence, now = local.engine.presence, local.clock()
        return {name for name in NAMES if roster.worker_alive(presence, name, config, now)}

    assert alive(two) == set(NAMES)
    for second in range(1, 100):
        # The clocks of two processes need not agree.
        one.clock.now = 1000.0 + second
        two.clock.now = 5000.0 + second
        if second < 10 or second == 65:
            for name in NAMES:
                session = one.engine.state.members[name].session
                if second < 10 or name == "a":
                    one.handlers.heartbeat(name, fed.HeartbeatRequest(session=session, activity=f"trains {second}"))
        exchange(one)
        exchange(two)
        assert alive(two) == alive(one)
    assert alive(two) == {"a"}
    assert two.engine.presence.activity["a"] == "trains 65"
    # A process that comes later knows it, too.
    three = start()
    assert three.engine.presence.silent_seconds("a", three.clock()) < 60
    one.handlers.leave("a", fed.LeaveRequest(session=one.engine.state.members["a"].session))
    exchange(one)
    until(lambda: "a" not in two.engine.presence.present())


def test_time_without_an_exchange_is_no_silence(start: Callable[[], Local]) -> None:
    one, two = start(), start()
    one.join(*NAMES)
    two.engine.catch_up()
    exchange(two)
    # The process is stopped, or the database is away, for longer than a worker may be silent.
    two.clock.now += 300.0
    two.engine.tick()
    assert two.engine.state.round is not None
    assert two.engine.state.round.repeats == 0
    exchange(two)
    assert roster.worker_alive(two.engine.presence, "a", two.engine.config, two.clock())
    two.engine.tick()
    assert two.engine.state.round.repeats == 0


def closed_round(start: Callable[[], Local]) -> tuple[Local, Local, Round]:
    """Two processes, and a round that both know to be closed."""
    one, two = start(), start()
    one.join(*NAMES)
    for name in NAMES:
        one.submit(name, 0.1)
    two.engine.catch_up()
    current = one.engine.round_to_fold()
    assert current is not None
    return one, two, current


def test_one_process_folds_and_one_that_lost_the_right_commits_nothing(
    start: Callable[[], Local], address: str
) -> None:
    one, two, current = closed_round(start)
    right = one.engine.begin_fold()
    assert right is not None
    assert two.engine.begin_fold() is None
    folded = one.engine.fold(current)
    # The first process is stopped for so long that its connections are ended.
    end_sessions(address, one)
    other = two.engine.begin_fold()
    assert other is not None
    assert other > right
    with pytest.raises(FoldLost):
        one.engine.commit(folded, right)
    assert two.engine.commit(two.engine.fold(current), other)
    two.engine.end_fold()
    assert two.engine.state.version == 1


def test_a_process_that_was_stopped_over_a_whole_round_changes_nothing(
    start: Callable[[], Local], address: str
) -> None:
    one, two, current = closed_round(start)
    right = one.engine.begin_fold()
    folded = one.engine.fold(current)
    end_sessions(address, one)
    two.engine.fold_ready()
    for name in NAMES:
        two.submit(name, 0.2)
    two.engine.fold_ready()
    two.submit("a", 0.3)
    directory = two.engine.store.directory
    files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    after = two.engine.state
    assert not one.engine.commit(folded, right)
    one.engine.delete_orphans()
    one.engine.tick()
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == files
    assert two.engine.store.newer(after) is None
    assert one.engine.state == after


def end_sessions(address: str, local: Local) -> None:
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(postgres_exchange._END_SESSIONS, (f"puf-server {local.engine.store.database.owner}",))
        until(
            lambda: (
                db.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE application_name = %s",
                    (f"puf-server {local.engine.store.database.owner}",),
                ).fetchone()
                is None
            )
        )


def test_a_restarted_database_loses_no_change(start: Callable[[], Local], postgres: Postgres) -> None:
    one, two = start(), start()
    one.join("a")
    postgres.restart("immediate")
    two.join("b")
    one.join("c")
    two.engine.catch_up()
    assert set(two.engine.state.members) == set(NAMES)
    assert one.engine.store.audit_fault() == ""


def test_the_operator_stops_all_processes(start: Callable[[], Local]) -> None:
    one, two = start(), start()
    one.engine.call(lambda state, now: (operations.stop(state, now), None))
    one.engine.write(one.engine.store.database.stop_others)
    exchange(two)
    assert two.engine.state.stopping
    assert [e.event for e in audit_entries(one.engine.store)].count("federation.stopped") == 1


def test_a_process_waits_until_the_first_one_has_recovered_the_state(tmp_path: Path, address: str) -> None:
    state = make_state(tmp_path / "state", database=address)
    first = Store.open(state, database=address)
    assert not first.joined
    found: list[bool] = []

    def second() -> None:
        with closing(Store.open(state, database=address)) as store:
            found.append(store.joined)

    thread = threading.Thread(target=second)
    thread.start()
    # It ends before it has recovered the state, so that the second one must do that.
    first.close()
    thread.join()
    assert found == [False]


def test_a_server_of_an_older_version_excludes_others(tmp_path: Path, address: str) -> None:
    state = make_state(tmp_path / "old", database=address)
    with psycopg.connect(address, autocommit=True) as old:
        old.execute("UPDATE puf_head SET tables = 1")
        old.execute(f"SELECT pg_advisory_lock({LOCK})")
        with pytest.raises(AlreadyServed, match="older PUF"):
            Store.open(state, database=address)
        old.execute("UPDATE puf_head SET tables = 2")
