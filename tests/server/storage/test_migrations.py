"""The rewriting of stored state of older versions, beyond the directories of tests/fixtures."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from puf_common.errors import StorageCorrupted
from puf_server.storage.migrations import SCHEMA
from puf_server.storage.state_store import Store

FIXTURES = Path(__file__).parents[2] / "fixtures" / "state_0_1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory of schema 2 with tickets, members and a recovery."""
    directory = tmp_path / "state"
    shutil.copytree(FIXTURES / "server-recovering", directory)
    return directory


def rows(directory: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(directory / "state.db")) as db:
        stored = {t: db.execute(f"SELECT id, body FROM {t}").fetchall() for t in ("members", "tickets")}
        found = {f"{table}/{key}": json.loads(body) for table, found in stored.items() for key, body in found}
        meta = db.execute("SELECT key, value FROM meta WHERE key NOT IN ('signing_key')")
        return found | {key: json.loads(value) for key, value in meta}


def execute(directory: Path, statement: str) -> None:
    with closing(sqlite3.connect(directory / "state.db")) as db, db:
        db.execute(statement)


def test_rows_have_the_new_names_after_the_first_start(old: Path) -> None:
    before = rows(old)
    Store.open(old).close()
    after = rows(old)
    (ticket,) = (row for name, row in after.items() if name.startswith("tickets/"))
    assert {"request", "applied"} <= ticket.keys()
    assert "outcome" not in ticket
    assert not {"request_key", "held", "applied_round", "evidence"} & ticket.keys()
    assert after["evaluation"]["answers"] == before["survey"]["answers"]
    assert after["recovery"]["evaluated"] == before["recovery"]["surveyed"]
    assert after["schema"] == SCHEMA
    assert not {"survey", "surveys", "episode"} & after.keys()


@pytest.mark.parametrize("body", ["{", "[]", '{"id": "t"}'])
def test_a_row_that_cannot_be_read_is_named_and_nothing_is_changed(old: Path, body: str) -> None:
    execute(old, f"UPDATE tickets SET body = '{body}'")
    with closing(sqlite3.connect(old / "state.db")) as db:
        before = list(db.iterdump())
    with pytest.raises(StorageCorrupted, match="tickets/t-"):
        Store.open(old)
    with closing(sqlite3.connect(old / "state.db")) as db:
        assert list(db.iterdump()) == before
