"""The state on disk: it is loaded as it was saved, orphans are deleted, damage is refused."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tests.databases import audit_entries, sqlite
from tests.running import make_state, tiny_config, tiny_payload
from tests.server.core.builders import Federation, config

from puf_common.errors import Mismatch, PufError, StorageCorrupted, UsageError
from puf_common.receipts.signing_key import SigningKey
from puf_common.tensors.model_file import read_payload
from puf_server.core.state.state import State
from puf_server.storage.layout import KEY_FILE
from puf_server.storage.postgres_database import PostgresDatabase
from puf_server.storage.sqlite_database import SqliteDatabase
from puf_server.storage.state_rows import VOLATILE
from puf_server.storage.state_store import Store


def persistent(state: State) -> dict[str, object]:
    return {f.name: getattr(state, f.name) for f in fields(State) if f.name not in VOLATILE}


def a_busy_state() -> State:
    """A state with a recovery, an open evaluation, tickets in several states and withdrawn models."""
    f = Federation(config())
    f.join("a", "b", "c", "d")
    f.train()
    f.file("a", reference="case 7")
    f.answer_evaluation(0.8)
    f.submit("a")
    f.submit_all()
    f.commit()
    f.file("b", scope="samples", forget_samples=3, retain_samples=7)
    return f.state


@pytest.fixture
def store(tmp_path: Path, database: str) -> Store:
    return Store.open(make_state(tmp_path / "state", database=database), database=database)


def execute(store: Store, statement: str, *parameters: object) -> None:
    """Changes a table behind the store's back. The statement has %s for its parameters."""
    if isinstance(store.database, SqliteDatabase):
        store.database.db.execute(statement.replace("%s", "?"), parameters)
    else:
        assert isinstance(store.database, PostgresDatabase)
        store.database._connection().execute(statement.encode(), parameters)


def test_a_state_is_loaded_as_it_was_saved(store: Store) -> None:
    state = replace(a_busy_state(), notes=())
    store.save(store.load(), state)
    assert persistent(store.load()) == persistent(state)
    store.close()


def test_an_unchanged_state_is_not_written(store: Store) -> None:
    state = store.load()
    assert not store.save(state, replace(state, stopping=True))
    assert store.newer(state) is None
    store.close()


def test_the_initial_model_is_a_safetensors_file_named_by_version_and_digest(store: Store) -> None:
    (path,) = (store.directory / "models").iterdir()
    digest = hashlib.sha256(tiny_payload()).hexdigest()
    assert path.name == f"v000000-{digest[:16]}.safetensors"
    assert read_payload(path) == tiny_payload()
    store.close()


def test_every_change_leaves_a_line_whose_hash_covers_its_predecessor(store: Store) -> None:
    store.save(store.load(), a_busy_state())
    link = b""
    entries = audit_entries(store)
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    for e in entries:
        link = hashlib.sha256(link + f"{e.number}|{e.at!r}|{e.event}|{e.facts}".encode()).digest()
        assert link == e.hash
    events = [entry.event for entry in entries]
    assert {"ticket.filed", "ticket.scheduled", "ticket.applied", "round.committed"} <= set(events)
    store.close()


def test_the_database_is_configured_to_survive_crashes(tmp_path: Path) -> None:
    store = Store.open(make_state(tmp_path / "state"))
    for name, value in (("journal_mode", "wal"), ("synchronous", 2), ("secure_delete", 1), ("fullfsync", 1)):
        assert sqlite(store).execute(f"PRAGMA {name}").fetchone() == (value,)
    store.close()


def test_orphans_are_deleted_and_files_being_written_stay(store: Store) -> None:
    spool, models = store.directory / "spool", store.directory / "models"
    for path in (
        spool / "1.1.a.main.ff",
        spool / "x.part",
        models / "v000009-ff.safetensors",
        models / "v000001-aa.safetensors",
    ):
        path.write_bytes(b"")
    state = store.load()
    store.delete_orphans(lambda: state)
    assert {p.name for p in spool.iterdir()} == {"x.part"}
    assert "v000001-aa.safetensors" in {p.name for p in models.iterdir()}
    store.delete_orphans(lambda: state, everything=True)
    assert list(spool.iterdir()) == []
    assert len(list(models.iterdir())) == 1
    store.close()


def test_a_directory_is_made_once(tmp_path: Path, database: str) -> None:
    make_state(tmp_path / "state", database=database)
    with pytest.raises(UsageError, match="already holds"):
        make_state(tmp_path / "state", tiny_config(title="second"), database=database)


def test_a_state_directory_is_served_by_one_process(tmp_path: Path) -> None:
    state = make_state(tmp_path / "one")
    with closing(Store.open(state)), pytest.raises(UsageError, match="another server serves"):
        Store.open(state)
    Store.open(state).close()


def test_a_directory_without_a_federation_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="puf-server init"):
        Store.open(tmp_path)


def test_a_damaged_description_and_another_schema_are_refused(tmp_path: Path) -> None:
    state = make_state(tmp_path / "state")
    with sqlite3.connect(state / "state.db") as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    db.close()
    with pytest.raises(Mismatch, match="99"):
        Store.open(state)
    described = json.loads((state / "federation.json").read_text())
    del described["manifest"]
    (state / "federation.json").write_text(json.dumps(described))
    with pytest.raises(StorageCorrupted):
        Store.open(state)


def test_the_signing_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path, database: str) -> None:
    directory = make_state(tmp_path / "state", database=database)
    path = directory / KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    first = Store.open(directory, database=database)
    public = first.key.public
    first.close()
    again = Store.open(directory, database=database)
    assert again.key.public == public
    again.close()


def test_an_older_directory_gets_a_key_when_it_is_opened_first(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state")
    (directory / KEY_FILE).unlink()
    with sqlite3.connect(directory / "state.db") as db:
        db.execute("DELETE FROM meta WHERE key = 'signing_key'")
    db.close()
    store = Store.open(directory)
    assert sqlite(store).execute("SELECT event FROM audit ORDER BY seq DESC").fetchone() == ("federation.key_made",)
    public = store.key.public
    store.close()
    again = Store.open(directory)
    assert again.key.public == public
    again.close()


def test_a_lost_or_exchanged_key_is_refused(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state")
    (directory / KEY_FILE).write_bytes(SigningKey.generate().to_pem())
    with pytest.raises(Mismatch, match="another key"):
        Store.open(directory)
    (directory / KEY_FILE).write_bytes(b"junk")
    with pytest.raises(StorageCorrupted):
        Store.open(directory)
    (directory / KEY_FILE).unlink()
    with pytest.raises(StorageCorrupted, match="bring it back"):
        Store.open(directory)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_never_written(store: Store, value: float) -> None:
    state = replace(a_busy_state(), notes=())
    store.save(store.load(), state)
    ticket = next(iter(state.tickets.values()))
    with pytest.raises(PufError, match=f"tickets/{ticket.id}.*not saved"):
        store.save(state, state.with_ticket(replace(ticket, request=replace(ticket.request, received_at=value))))
    assert state.recovery is not None
    with pytest.raises(PufError, match="recovery"):
        store.save(state, replace(state, recovery=replace(state.recovery, started_at=value)))
    with pytest.raises(ValueError, match="JSON compliant"):
        store.save(state, state.note("event", 1.0, value=value))
    assert persistent(store.load()) == persistent(state)
    store.close()


def test_a_text_that_only_looks_like_such_a_number_is_written(store: Store) -> None:
    f = Federation(config())
    f.join("NaN", "Infinity")
    state = replace(f.state, notes=())
    store.save(store.load(), state)
    assert set(store.load().members) == {"NaN", "Infinity"}
    store.close()


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    store = Store.open(make_state(tmp_path / "state"))
    state = replace(a_busy_state(), notes=())
    store.save(store.load(), state)
    ticket = next(iter(state.tickets))
    sqlite(store).execute(
        "UPDATE tickets SET body = json_set(body, '$.request.received_at', NULL) WHERE id = ?", (ticket,)
    )
    with pytest.raises(StorageCorrupted, match=rf"tickets/{ticket} cannot be read.*received_at"):
        store.load()
    store.close()


def test_a_changed_record_is_named_at_the_next_start(tmp_path: Path, database: str, store: Store) -> None:
    execute(store, f"UPDATE {'puf_rows' if database else 'models'} SET body = replace(body, %s, %s)", "ready", "other")
    store.close()
    with pytest.raises(StorageCorrupted, match="models/0 does not match its checksum"):
        Store.open(store.directory, database=database)


def test_facts_beside_the_state_are_kept_and_deleted(store: Store, database: str) -> None:
    assert store.last_time() is None
    store.record_time(1234.5)
    store.await_receipts(True)
    store.close()
    again = Store.open(store.directory, database=database)
    assert again.last_time() == 1234.5
    assert again.awaits_receipts
    again.await_receipts(False)
    assert not again.awaits_receipts
    again.close()


def test_pages_of_the_audit_log_select_by_event_text_round_and_position(store: Store) -> None:
    state = store.load()
    for number in range(1, 13):
        state = state.note("round.committed" if number % 2 else "round.opened", float(number), round=number, who="A_%b")
    store.save(store.load(), state)
    with store.database.audit_log() as log:
        last = log.head().number
        assert [e.number for e in log.after(last - 2, 10)] == [last - 1, last]
        assert [e.at for e in log.page(before=0, limit=2, event="round.c")] == [11.0, 9.0]
        assert [e.number for e in log.page(before=last, limit=1)] == [last - 1]
        assert len(log.page(before=0, limit=100, text="a_%B")) == 12
        assert log.page(before=0, limit=100, text="a_b") == []
        assert [e.at for e in log.page(before=0, limit=9, number=1)] == [1.0]
        assert [e.event for e in log.lines("round.opened", "other")] == ["round.opened"] * 6
    store.close()
