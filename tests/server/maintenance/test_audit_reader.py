"""`puf-server audit`: while a server runs, offline, and after an edit of the database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forgotten import forgotten_state
from tests.running import make_state

from puf_common.config.exit_codes import Exit
from puf_common.errors import Mismatch, TransferCorrupted, UsageError
from puf_server.cli.main import main
from puf_server.maintenance import audit_reader
from puf_server.storage.state_store import Store

EDITS: dict[str, str] = {
    "a changed fact": "UPDATE audit SET facts = replace(facts, 'client', 'klient') WHERE seq = 4",
    "a changed time": "UPDATE audit SET at = at + 1 WHERE seq = 2",
    "a changed event": "UPDATE audit SET event = 'round.opened' WHERE seq = 1",
    "a changed hash": "UPDATE audit SET hash = zeroblob(32) WHERE seq = (SELECT max(seq) FROM audit)",
    "a missing line": "DELETE FROM audit WHERE seq = 3",
    "a missing first line": "DELETE FROM audit WHERE seq = 1",
    "two lines swapped": "UPDATE audit SET seq = CASE seq WHEN 3 THEN -4 ELSE -3 END WHERE seq IN (3, 4);"
    "UPDATE audit SET seq = -seq WHERE seq < 0",
    "everything gone": "DELETE FROM audit",
}


def edited(directory: Path, statement: str) -> None:
    db = sqlite3.connect(directory / "state.db")
    db.executescript(statement)
    db.close()


def test_a_log_is_intact_while_it_is_served_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_state(tmp_path / "state")
    store = Store.open(directory)
    assert audit_reader.verify(directory, [])[0].number == 1
    store.close()
    assert main(["audit", "verify", "--state", str(directory)]) == Exit.OK
    assert "intact: 1 entries" in capsys.readouterr().out
    # Reading leaves nothing behind that prevents serving.
    Store.open(directory).close()


def test_reading_changes_no_file(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state")
    before = {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}
    audit_reader.verify(directory, [])
    after = {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file() and p.name in before}
    assert after == before


@pytest.mark.parametrize("what", EDITS)
def test_every_edit_is_found(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, _ = forgotten_state(tmp_path)
    assert main(["audit", "verify", "--state", str(directory)]) == Exit.OK
    edited(directory, EDITS[what])
    assert main(["audit", "verify", "--state", str(directory)]) == Exit.FAILURE
    assert "audit" in capsys.readouterr().err


def test_a_truncated_log_is_found_with_a_receipt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, receipt = forgotten_state(tmp_path)
    command = ["audit", "verify", "--state", str(directory), "--receipt", str(receipt)]
    assert main(command) == Exit.OK
    assert "1 receipt checked" in capsys.readouterr().out
    edited(directory, "DELETE FROM audit WHERE seq > 5")
    assert main(["audit", "verify", "--state", str(directory)]) == Exit.OK
    assert main(command) == Exit.FAILURE
    assert "cut off: it ends with line 5" in capsys.readouterr().err


def test_only_receipts_of_this_federation_are_accepted(tmp_path: Path) -> None:
    directory, receipt = forgotten_state(tmp_path / "one")
    receipt.write_bytes(receipt.read_bytes().replace(b"case 7", b"case 8"))
    with pytest.raises(TransferCorrupted, match="changed after it was signed"):
        audit_reader.verify(directory, [receipt])
    _, foreign = forgotten_state(tmp_path / "two")
    with pytest.raises(Mismatch, match="signed with the key"):
        audit_reader.verify(directory, [foreign])
    with pytest.raises(UsageError):
        audit_reader.verify(directory, [tmp_path / "none.json"])


def test_the_log_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, _ = forgotten_state(tmp_path)
    assert main(["audit", "show", "--state", str(directory), "--last", "3"]) == Exit.OK
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["audit", "show", "--state", str(directory), "--json"]) == Exit.OK
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["line"] for line in lines] == list(range(1, len(lines) + 1))
    filed = next(line for line in lines if line["event"] == "ticket.filed")
    assert filed["facts"]["by"] == "client"


@pytest.mark.parametrize("make", [lambda d: None, lambda d: (d / "state.db").write_bytes(b"no database" * 1000)])
def test_a_directory_without_a_federation_is_reported(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path)
    assert main(["audit", "verify", "--state", str(tmp_path)]) in (Exit.USAGE, Exit.FAILURE)
