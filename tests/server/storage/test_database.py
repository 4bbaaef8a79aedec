"""The database: connections, purging of overwritten records, and the audit log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from puf_common import audit_chain
from puf_common.errors import StorageCorrupted
from puf_server.storage.database import append_audit, audit_head, audit_lines, connect, purge_free_pages, reading


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect(path)) as db:
        db.execute("CREATE TABLE audit (seq INTEGER PRIMARY KEY, at REAL, event TEXT, facts TEXT, hash BLOB)")
        db.execute("CREATE TABLE t (x TEXT)")
        yield db


def append(db: sqlite3.Connection, event: str, **facts: object) -> None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        append_audit(db, 1.0, event, facts)


def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    path.write_bytes(b"no database" * 100)
    with pytest.raises(StorageCorrupted, match=r"state\.db cannot be opened"):
        connect(path)


def test_entries_of_the_audit_log_are_chained_and_found_by_event(db: sqlite3.Connection) -> None:
    assert audit_head(db) == audit_chain.EMPTY
    for number in range(3):
        append(db, "even" if number % 2 == 0 else "odd", number=number)
    assert audit_chain.follow(audit_lines(db)) == audit_head(db)
    assert audit_head(db).number == 3
    assert [entry.number for entry in audit_lines(db, "even")] == [1, 3]
    assert [entry.number for entry in audit_lines(db, "even", "odd")] == [1, 2, 3]


def test_a_reader_sees_one_state_while_another_connection_writes(db: sqlite3.Connection, path: Path) -> None:
    append(db, "first")
    with reading(path) as reader:
        assert audit_head(reader).number == 1
        append(db, "second")
        assert [entry.event for entry in audit_lines(reader)] == ["first"]
    assert audit_head(db).number == 2


def test_a_purge_removes_overwritten_records_from_all_files(db: sqlite3.Connection, path: Path) -> None:
    secret = "a very secret text"
    db.execute("INSERT INTO t VALUES (?)", (secret,))
    db.execute("UPDATE t SET x = 'gone'")
    everything = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert secret.encode() in everything
    assert purge_free_pages(path)
    assert not [file for file in path.parent.iterdir() if secret.encode() in file.read_bytes()]


def test_a_purge_does_not_wait_for_a_reader_or_a_writer(db: sqlite3.Connection, path: Path) -> None:
    db.execute("INSERT INTO t VALUES ('x')")
    with reading(path) as reader:
        reader.execute("SELECT * FROM t").fetchall()
        db.execute("INSERT INTO t VALUES ('y')")
        assert not purge_free_pages(path)
    db.execute("BEGIN IMMEDIATE")
    assert not purge_free_pages(path)
    db.execute("COMMIT")
    assert purge_free_pages(path)
