"""A bit that changes in the database is found at the start, or it changes nothing. No start fails without a reason."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from tests.databases import sqlite
from tests.forgotten import forgotten_state
from tests.running import make_state
from tests.server.local import Local

from puf_common.errors import PufError, StorageCorrupted
from puf_server.core.state.state import State
from puf_server.engine.engine import Engine
from puf_server.engine.troubles import Trouble
from puf_server.maintenance import audit_reader
from puf_server.storage.state_store import Store

FLIPS = 400


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation in which a client was forgotten, closed, with everything in one file."""
    directory, _ = forgotten_state(tmp_path_factory.mktemp("whole"))
    with closing(sqlite3.connect(directory / "state.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return directory


def loaded(directory: Path) -> tuple[State, bool]:
    """The state, and whether the server shows that the audit log is damaged."""
    engine = Engine(Store.open(directory), lambda: 2e9)
    try:
        return engine.store.load(), Trouble.AUDIT in engine.troubles.open()
    finally:
        engine.close()


def test_a_changed_bit_is_named_or_changes_nothing(whole: Path, tmp_path: Path) -> None:
    content = (whole / "state.db").read_bytes()
    expected, shown = loaded(shutil.copytree(whole, tmp_path / "reference"))
    assert not shown
    rng, found, unclear = Random(1), 0, list[str]()
    # Half of the flips in bytes that are used.
    used = [position for position, byte in enumerate(content) if byte]
    for number in range(FLIPS):
        directory = shutil.copytree(whole, tmp_path / f"flip-{number}")
        position, bit = rng.choice(used) if number % 2 else rng.randrange(len(content)), rng.randrange(8)
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        (directory / "state.db").write_bytes(damaged)
        told = f"byte {position}, bit {bit}"
        try:
            state, shown = loaded(directory)
        except PufError as error:
            unclear += [told] if str(directory) not in error.message else []
            found += 1
        else:
            assert state == expected, told
            try:
                audit_reader.verify(directory, [])
            except StorageCorrupted:
                assert shown, told
                found += 1
        shutil.rmtree(directory)
    assert found > FLIPS // 4
    assert not unclear


def test_every_character_of_a_record_counts(whole: Path, tmp_path: Path) -> None:
    """A digit that became another digit is still readable."""
    directory = shutil.copytree(whole, tmp_path / "state")
    with closing(sqlite3.connect(directory / "state.db")) as db, db:
        db.execute("""UPDATE members SET body = replace(body, '"samples":10', '"samples":11') WHERE id = 'anna'""")
    with pytest.raises(StorageCorrupted, match=r"members/anna does not match its checksum; restore a backup"):
        Store.open(directory)


def test_a_page_that_is_damaged_while_the_server_runs_is_named(tmp_path: Path) -> None:
    local = Local(make_state(tmp_path / "state"))
    local.join("a")
    assert local.engine.store.purge_free_pages()
    path = tmp_path / "state" / "state.db"
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    sqlite(local.engine.store).execute("PRAGMA shrink_memory")
    with pytest.raises(StorageCorrupted, match=r"state\.db is damaged and cannot be read: .*; restore a backup"):
        local.join("b")
    assert "state.db is damaged" in local.engine.troubles.text()
    assert "b" not in local.engine.state.members
    local.engine.close()
