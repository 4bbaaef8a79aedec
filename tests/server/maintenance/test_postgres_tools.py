"""A backup and a restore with PostgreSQL's own tools. The restore does not undo what was forgotten."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.forgotten import EVERYONE, OnDisk, trained_state
from tests.postgres import Postgres, programs

from puf_common.errors import NotNow
from puf_common.receipts.signed_receipt import read
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.tickets import TicketState
from puf_server.engine import receipts
from puf_server.maintenance import audit_reader
from puf_server.maintenance.restore import apply_receipts


def run(program: str, *words: str) -> None:
    directory = programs()
    assert directory is not None
    done = subprocess.run([str(directory / program), *words], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_a_restored_database_forgets_the_client_again(tmp_path: Path, postgres: Postgres) -> None:
    address, state, copy, shown = postgres.address(), tmp_path / "state", tmp_path / "copy", tmp_path / "receipts"
    schema = address.rpartition("search_path%3D")[2]
    trained_state(state, address)
    run("pg_dump", "-Fc", "-n", schema, "-f", str(tmp_path / "puf.dump"), address)
    shutil.copytree(state, copy)
    shown.mkdir()
    with OnDisk(state, address) as f:
        f.join(*EVERYONE)
        (shown / "receipt.json").write_bytes(receipts.issue(f.engine, f.forget("cleo"), "cleo"))
    ticket = read((shown / "receipt.json").read_bytes()).ticket

    run("pg_restore", "-c", "-n", schema, "-d", address, str(tmp_path / "puf.dump"))
    # The directory remembers that a request was completed.
    with pytest.raises(NotNow, match="--receipts DIR"):
        apply_receipts(state, None, waived=False, database=address)
    shutil.rmtree(state)
    shutil.copytree(copy, state)
    apply_receipts(state, shown, waived=False, database=address)
    with OnDisk(state, address) as f:
        assert f.engine.state.tickets[ticket].reopened
        assert {f.engine.state.models[v].status for v in (1, 2)} == {ModelStatus.WITHDRAWN}
        f.join(*EVERYONE)
        f.work()
        assert f.engine.state.tickets[ticket].state is TicketState.COMPLETED
        assert f.engine.state.members["cleo"].status is MemberStatus.FORGOTTEN
        assert {f.engine.state.models[v].status for v in (1, 2)} == {ModelStatus.DELETED}
    audit_reader.verify(state, [], database=address)
