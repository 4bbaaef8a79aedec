"""A backup is one consistent file, also while the server runs, and the audit log records it."""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.forgotten import EVERYONE, OnDisk, trained_state

from puf_common.errors import StorageCorrupted, Unavailable
from puf_common.receipts.signed_receipt import read
from puf_server.engine import receipts
from puf_server.maintenance import audit_reader
from puf_server.maintenance.backup import backup
from puf_server.maintenance.restore import restore


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return trained_state(tmp_path / "state")


def test_a_backup_can_be_made_while_the_server_runs(directory: Path, tmp_path: Path) -> None:
    with OnDisk(directory) as f:
        f.join(*EVERYONE)
        made = backup(directory, tmp_path / "b.tar")
        # The server's next entry follows the entry of the backup.
        f.forget("anna")
        assert f.events()[made.line + 0] == "backup.made"
        audit_reader.verify(directory, [])
    assert restore(tmp_path / "b.tar", tmp_path / "new").round == 2


def test_a_backup_holds_no_updates(directory: Path, tmp_path: Path) -> None:
    (directory / "spool" / "3.1.anna.main.ff").write_bytes(b"canary")
    backup(directory, tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert not [name for name in tar.getnames() if "spool" in name]
    assert b"canary" not in (tmp_path / "b.tar").read_bytes()


def test_a_damaged_record_does_not_get_into_a_backup(directory: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(directory / "state.db")) as db, db:
        db.execute("UPDATE members SET body = replace(body, '\"membership\":1', '\"membership\":0') WHERE id = 'anna'")
    with pytest.raises(StorageCorrupted, match="members/anna does not match its checksum; restore a backup"):
        backup(directory, tmp_path / "b.tar")
    assert list(tmp_path.iterdir()) == [directory]


def test_a_damaged_page_does_not_get_into_a_backup(directory: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(directory / "state.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = db.execute("PRAGMA page_size").fetchone()
    content = bytearray((directory / "state.db").read_bytes())
    content[size : size + 8] = b"\xff" * 8
    (directory / "state.db").write_bytes(content)
    with pytest.raises(StorageCorrupted, match=r"state\.db is damaged and cannot be read"):
        backup(directory, tmp_path / "b.tar")
    assert list(tmp_path.iterdir()) == [directory]


def test_a_receipt_lists_the_backups_that_contain_the_client(directory: Path, tmp_path: Path) -> None:
    made = backup(directory, tmp_path / "b.tar")
    with OnDisk(directory) as f:
        f.join(*EVERYONE)
        issued = read(receipts.issue(f.engine, f.forget("anna"))).content.as_json()
    assert [(b["digest"], b["versions"]) for b in issued["backups"]] == [(made.digest, [1, 2])]


def test_a_backup_that_cannot_be_recorded_is_deleted(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("puf_server.maintenance.backup.append_audit", full)
    with pytest.raises(Unavailable, match="recorded"):
        backup(directory, tmp_path / "b.tar")
    assert list(tmp_path.iterdir()) == [directory]


def test_after_a_model_is_deleted_another_snapshot_is_taken(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import puf_server.maintenance.backup as module

    snapshot, taken = module._snapshot, []

    def racing(db: sqlite3.Connection, path: Path, source: Path) -> Any:
        head, versions, history = snapshot(db, path, source)
        taken.append(head)
        # A file that the first snapshot names does not exist when its files are opened.
        gone = {} if len(taken) > 1 else {9: "models/v000009-0123456789abcdef.safetensors"}
        return head, {**versions, **gone}, history

    monkeypatch.setattr(module, "_snapshot", racing)
    assert backup(directory, tmp_path / "b.tar").models == 3
    assert len(taken) == 2
