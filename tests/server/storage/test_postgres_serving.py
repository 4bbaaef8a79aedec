"""One process serves a federation in PostgreSQL; a silent one is replaced and changes nothing any more."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest
from tests.postgres import Postgres
from tests.running import make_state, tiny_config
from tests.server.local import Local

from puf_server.storage import postgres_serving
from puf_server.storage.state_database import AlreadyServed
from puf_server.storage.state_store import Store


class Ended(BaseException):
    """The process would end here."""


@pytest.fixture
def address(postgres: Postgres) -> str:
    return postgres.address()


@pytest.fixture
def state(tmp_path: Path, address: str) -> Path:
    return make_state(tmp_path / "state", tiny_config(plan={"rounds": 4}), database=address)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes state once that they are alive and are silent after that."""

    def end(event: str, why: str) -> NoReturn:
        raise Ended(why)

    monkeypatch.setattr(postgres_serving, "ALIVE_SECONDS", 3600.0)
    monkeypatch.setattr(postgres_serving, "exit_now", end)


def age(address: str, seconds: float) -> None:
    """Makes the last sign of life so much older."""
    with psycopg.connect(address, autocommit=True) as db:
        db.execute("UPDATE puf_serving SET alive = alive - make_interval(secs => %s)", (seconds,))


def test_a_process_that_is_alive_is_not_replaced(state: Path, address: str, silent: None) -> None:
    with closing(Store.open(state, database=address)):
        age(address, postgres_serving.SILENT_SECONDS / 2)
        with pytest.raises(AlreadyServed, match="another server serves"):
            Store.open(state, database=address)


def test_a_process_that_was_replaced_changes_neither_state_nor_files(state: Path, address: str, silent: None) -> None:
    old = Local(state, database=address)
    old.join("a", "b")
    for name in ("a", "b"):
        old.submit(name, 0.1)
    current = old.engine.round_to_fold()
    assert current is not None
    # The old process is stopped while it writes a model; the new one takes its place and does a whole round and more.
    folded = old.engine.fold(current)
    age(address, postgres_serving.SILENT_SECONDS)
    new = Local(state, database=address)
    new.engine.fold_ready()
    new.submit("a", 0.2)
    files = sorted(path for path in state.rglob("*") if path.is_file())
    after = new.engine.state
    assert after.version == 1
    # The old process wakes. Every way to change something ends it.
    with pytest.raises(Ended, match="another server serves"):
        old.engine.commit(folded)
    with pytest.raises(Ended, match="another server serves"):
        old.join("c")
    with pytest.raises(Ended, match="another server serves"):
        old.engine.delete_orphans()
    assert sorted(path for path in state.rglob("*") if path.is_file()) == files
    assert new.engine.store.newer(after) is None
    assert new.engine.store.load() == after
    new.submit("b", 0.2)
    new.engine.fold_ready()
    assert new.engine.state.version == 2
    new.engine.close()
    old.engine.store.database.close()


def test_a_process_that_lost_its_connection_takes_the_lock_again(state: Path, address: str, silent: None) -> None:
    local = Local(state, database=address)
    local.join("a")
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(postgres_serving._END_HOLDER)
    local.join("b")
    with pytest.raises(AlreadyServed):
        Store.open(state, database=address)
    local.engine.close()
    Store.open(state, database=address).close()


def test_a_process_states_that_it_is_alive(
    state: Path, address: str, monkeypatch: pytest.MonkeyPatch, postgres: Postgres
) -> None:
    monkeypatch.setattr(postgres_serving, "ALIVE_SECONDS", 0.01)
    with closing(Store.open(state, database=address)), psycopg.connect(address, autocommit=True) as db:
        query = "SELECT alive FROM puf_serving"
        first = db.execute(query).fetchone()
        while db.execute(query).fetchone() == first:
            pass
    postgres.restart()
