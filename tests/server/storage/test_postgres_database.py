"""The state in PostgreSQL: commits that fail if the state has moved, lost connections, migrations, roles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from tests.databases import audit_entries
from tests.pki import Pki
from tests.postgres import Postgres
from tests.running import make_state, tiny_config
from tests.server.core.builders import Federation, config
from tests.server.local import Local

from puf_common.audit_chain import Head
from puf_common.errors import Mismatch, NotNow, Unavailable, UsageError
from puf_server.core import operations
from puf_server.maintenance import audit_reader
from puf_server.maintenance.backup import backup
from puf_server.maintenance.restore import apply_receipts
from puf_server.storage import postgres_tables
from puf_server.storage.postgres_connection import Address
from puf_server.storage.postgres_database import PostgresDatabase
from puf_server.storage.state_database import DatabaseBusy, StateMoved
from puf_server.storage.state_store import Store


@pytest.fixture
def address(postgres: Postgres) -> str:
    return postgres.address()


@pytest.fixture
def state(tmp_path: Path, address: str) -> Path:
    return make_state(tmp_path / "state", database=address)


@pytest.fixture
def opened(state: Path, address: str) -> Iterator[PostgresDatabase]:
    with closing(PostgresDatabase.open(address)) as found:
        yield found


@pytest.fixture
def other(address: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A connection of another process."""
    with psycopg.connect(address, autocommit=True) as db:
        yield db


def test_a_commit_fails_where_the_state_has_moved(
    opened: PostgresDatabase, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    state = opened.load()
    other.execute("UPDATE puf_head SET version = version + 1")
    with pytest.raises(StateMoved):
        opened.save(state, operations.pause(state, 1.0))
    assert opened.newer(state) == state
    assert opened.newer(state) is None
    assert opened.save(state, operations.pause(state, 1.0))
    assert opened.load().paused


def test_a_newer_state_has_the_rows_that_another_process_wrote_and_not_those_that_it_deleted(
    opened: PostgresDatabase, address: str
) -> None:
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    known = opened.load()
    with closing(PostgresDatabase(address)) as second:
        start = second.load()
        second.save(start, f.state)
        newest = opened.newer(known)
        assert newest is not None
        assert newest == second.load()
        before = second.load()
        without = {name: member for name, member in before.members.items() if name != "c"}
        second.save(before, replace(before, members=without))
        again = opened.newer(newest)
        assert again is not None
        assert list(again.members) == ["a", "b", "d"]
        # Records that did not change are the same objects: the next commit writes the difference only.
        assert again.members["a"] is newest.members["a"]
        assert again.models is newest.models


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_connection_lost_in_a_commit_leaves_no_doubt(
    opened: PostgresDatabase,
    other: psycopg.Connection[tuple[object, ...]],
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ends the session right before or right after PostgreSQL has stored the commit."""
    state = opened.load()
    real = psycopg.Connection.transaction

    def lost(self: psycopg.Connection[tuple[object, ...]]) -> object:
        return LostTransaction(self, real(self), other, moment)

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "transaction", once(lost, real))
        if moment == "after":
            assert opened.save(state, operations.extend(state, 3, 1.0))
        else:
            with pytest.raises(StateMoved):
                opened.save(state, operations.extend(state, 3, 1.0))
    assert opened.load().planned == state.planned + (3 if moment == "after" else 0)
    current = opened.load()
    assert opened.save(current, operations.pause(current, 2.0))
    with opened.audit_log() as log:
        events = [e.event for e in log.lines()]
    assert events.count("federation.extended") == (1 if moment == "after" else 0)


class LostTransaction:
    """A transaction whose connection another session ends before or after its commit."""

    def __init__(self, db: object, real: object, other: psycopg.Connection[tuple[object, ...]], moment: str) -> None:
        self._db, self._real, self._other, self._moment = db, real, other, moment

    def __enter__(self) -> object:
        return self._real.__enter__()  # type: ignore[attr-defined]

    def __exit__(self, *error: object) -> object:
        end = "SELECT pg_terminate_backend(%s, 5000)"
        pid = self._db.info.backend_pid  # type: ignore[attr-defined]
        if self._moment == "before":
            self._other.execute(end, (pid,))
        result = self._real.__exit__(*error)  # type: ignore[attr-defined]
        if self._moment == "after":
            self._other.execute(end, (pid,))
            raise psycopg.OperationalError("the connection was lost while the answer was on its way")
        return result


def once(first: object, then: object) -> object:
    calls: list[int] = []

    def call(*args: object) -> object:
        calls.append(1)
        return (first if len(calls) == 1 else then)(*args)  # type: ignore[operator]

    return call


def test_calls_continue_after_the_database_restarted(state: Path, address: str, postgres: Postgres) -> None:
    local = Local(state, database=address)
    local.join("a", "b")
    postgres.restart("immediate")
    local.join("c")
    postgres.restart("fast")
    local.forget("c")
    local.engine.tick()
    assert local.engine.troubles.text() == ""
    members = local.engine.state.members
    assert local.engine.store.audit_fault() == ""
    local.engine.close()
    with closing(PostgresDatabase(address)) as stored:
        assert set(stored.load().members) == set(members)


def test_a_database_that_is_away_is_named_and_nothing_changes(
    state: Path, address: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Local(state, database=address)
    local.join("a")
    postgres.stop("immediate")
    try:
        monkeypatch.setattr("puf_server.engine.engine._BUSY_SECONDS", 0.2)
        monkeypatch.setattr("puf_server.storage.postgres_database._DOUBT_SECONDS", 0.2)
        with pytest.raises(Unavailable, match="database"):
            local.join("b")
        with pytest.raises(DatabaseBusy, match="cannot be reached"):
            local.join("b")
        assert "cannot be reached" in local.engine.troubles.text()
        assert set(local.engine.state.members) == {"a"}
    finally:
        postgres.start()
    local.join("b")
    assert local.engine.troubles.text() == ""
    local.engine.close()


def test_tables_of_an_older_version_are_upgraded_in_one_transaction_and_newer_ones_refused(
    state: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = (*postgres_tables.STEPS, "CREATE TABLE puf_more (id text PRIMARY KEY)")
    with monkeypatch.context() as patch:
        patch.setattr(postgres_tables, "STEPS", steps)
        patch.setattr(postgres_tables.migrate, "__defaults__", (steps,))
        with closing(Store.open(state, database=address)) as store:
            (entry,) = [e for e in audit_entries(store) if e.event == "federation.migrated"]
            assert entry.facts == '{"tables":2,"to":3}'
        Store.open(state, database=address).close()
    with pytest.raises(Mismatch, match="tables of version 3, this server reads 2"):
        Store.open(state, database=address)


def test_tables_for_one_server_are_upgraded(
    state: Path, address: str, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    other.execute("DROP TABLE puf_commits, puf_servers, puf_presence")
    other.execute("ALTER TABLE puf_head DROP COLUMN folds, ADD COLUMN writer text NOT NULL DEFAULT ''")
    other.execute(
        "CREATE TABLE puf_serving (one boolean PRIMARY KEY, holder text NOT NULL, alive timestamptz NOT NULL)"
    )
    other.execute("UPDATE puf_head SET tables = 1")
    local = Local(state, database=address)
    local.join("a", "b")
    assert "federation.migrated" in [e.event for e in audit_entries(local.engine.store)]
    local.engine.close()


def test_a_failed_upgrade_changes_nothing(state: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (*postgres_tables.STEPS, "CREATE TABLE puf_more (id text)", "CREATE TABLE nowhere.puf_more (id text)")
    with monkeypatch.context() as patch:
        patch.setattr(postgres_tables.migrate, "__defaults__", (steps,))
        with pytest.raises(Unavailable, match="refuses"):
            Store.open(state, database=address)
    Store.open(state, database=address).close()


def test_the_place_of_the_state_must_fit(tmp_path: Path, state: Path, address: str) -> None:
    with pytest.raises(UsageError, match=r"in PostgreSQL: give --state postgresql://\.\.\. --files"):
        Store.open(state)
    with pytest.raises(UsageError, match="pg_dump"):
        backup(state, tmp_path / "out.tar")
    local = make_state(tmp_path / "local")
    with pytest.raises(UsageError, match="in that directory"):
        Store.open(local, database=address)


def test_a_database_of_another_federation_and_an_empty_one_are_refused(
    tmp_path: Path, state: Path, postgres: Postgres
) -> None:
    with pytest.raises(UsageError, match="holds no federation"):
        Store.open(state, database=postgres.address())
    other = postgres.address()
    make_state(tmp_path / "other", tiny_config(title="other").model_copy(update={"id": "f-other"}), database=other)
    with pytest.raises(Mismatch, match="f-other"):
        Store.open(state, database=other)


def test_a_password_is_in_no_message() -> None:
    with pytest.raises(UsageError) as unreadable:
        Address("postgresql://puf:secret-word@host/puf?nonsense=1")
    with pytest.raises(DatabaseBusy) as unreachable:
        Address("postgresql://puf:secret-word@127.0.0.1:1/puf").connect()
    assert "secret-word" not in f"{unreadable.value}{unreachable.value}"
    assert "127.0.0.1:1/puf" in str(unreachable.value)


def test_the_connection_uses_tls_as_the_address_says(tmp_path: Path, postgres: Postgres) -> None:
    address = postgres.tls_address(postgres.ca)
    make_state(tmp_path / "state", database=address)
    with closing(Store.open(tmp_path / "state", database=address)) as store:
        assert isinstance(store.database, PostgresDatabase)
        assert store.database._connection().pgconn.ssl_in_use
    strange = Pki(tmp_path / "strange")
    with pytest.raises(DatabaseBusy, match="certificate verify failed"):
        Store.open(tmp_path / "state", database=postgres.tls_address(strange.ca))


def test_a_character_that_the_database_does_not_store_is_in_no_entry(opened: PostgresDatabase) -> None:
    with opened.audit_log() as log:
        assert log.page(before=0, limit=1, text="\0") == []


def test_the_audit_log_is_read_while_a_server_serves(state: Path, address: str) -> None:
    local = Local(state, database=address)
    local.join("a", "b")
    assert audit_reader.verify(state, [], address)[0].number == len(audit_reader.show(state, 0, address))
    with pytest.raises(UsageError, match="in PostgreSQL"):
        audit_reader.show(state, 0)
    local.engine.close()


def test_deleted_rows_leave_the_tables_files(state: Path, address: str, opened: PostgresDatabase) -> None:
    opened.put_meta({"gone": "x" * 100})
    opened.put_meta({"gone": None})
    with closing(Address(address).connect()) as db:
        query = (
            "SELECT n_dead_tup, pg_relation_size('puf_rows') FROM pg_stat_all_tables WHERE relid = 'puf_rows'::regclass"
        )
        filenode = "SELECT pg_relation_filenode('puf_rows')"
        before = db.execute(filenode).fetchone()
        assert opened.purge()
        assert db.execute(filenode).fetchone() != before
        assert db.execute(query).fetchone() is not None
        # Another transaction uses the table: the purge comes later.
        db.execute("BEGIN; SELECT count(*) FROM puf_rows")
        assert not opened.purge()


def test_a_database_that_was_restored_to_before_a_completed_request_asks_for_receipts(
    state: Path, address: str, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    with closing(Store.open(state, database=address)) as store:
        before = store.load()
        store.save(before, before.note("ticket.completed", 1.0, ticket="t-1"))
        store.mark_completed()
    apply_receipts(state, None, waived=False, database=address)
    # As a restored database would be: without the last entry.
    other.execute("DELETE FROM puf_audit WHERE seq = (SELECT max(seq) FROM puf_audit)")
    with pytest.raises(NotNow, match="--receipts DIR"):
        apply_receipts(state, None, waived=False, database=address)
    apply_receipts(state, None, waived=True, database=address)
    with closing(Store.open(state, database=address)) as store:
        assert not store.awaits_receipts
        assert [e.event for e in audit_entries(store)][-2:] == ["database.restored", "receipts.waived"]


def test_the_mark_of_a_later_request_is_not_replaced_by_that_of_an_earlier_one(
    state: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store.open(state, database=address)) as one:
        before = one.load()
        done = before.note("ticket.completed", 1.0, ticket="t-1")
        one.save(before, done)
        mark = one._mark
        assert mark is not None
        write = mark.write

        def overtaken(head: Head) -> None:
            """Another process completes and marks a later request before this one writes its mark."""
            monkeypatch.setattr(mark, "write", write)
            one.save(done, done.note("ticket.completed", 2.0, ticket="t-2"))
            one.mark_completed()
            write(head)

        monkeypatch.setattr(mark, "write", overtaken)
        one.mark_completed()
        with one.database.audit_log() as log:
            assert mark.read() == log.head()
