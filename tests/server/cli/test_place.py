"""Commands find a federation in a directory, or in PostgreSQL with a directory of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.postgres import Postgres
from tests.running import make_state, tiny_payload

from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_server.cli.main import main
from puf_server.cli.place import directory, place
from puf_server.storage.state_store import Store


def test_an_address_needs_a_directory_of_files_and_a_directory_needs_none(tmp_path: Path) -> None:
    assert place(str(tmp_path), "") == (tmp_path, "")
    assert place("postgresql://puf@db/puf", str(tmp_path)) == (tmp_path, "postgresql://puf@db/puf")
    with pytest.raises(UsageError, match="needs --files"):
        place("postgresql://puf@db/puf", "")
    with pytest.raises(UsageError, match="--files belongs to --state postgresql"):
        place(str(tmp_path), str(tmp_path))
    with pytest.raises(UsageError, match="directory of --keys or --files"):
        directory("postgres://puf@db/puf")


def test_a_federation_is_made_and_read_in_postgresql(
    tmp_path: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    with_weights = make_state(tmp_path / "other")
    (weights,) = (with_weights / "models").iterdir()
    address, files = postgres.address(), tmp_path / "files"
    where = ["--state", address, "--files", str(files)]
    assert main(["init", *where, "--model", "tiny", "--model-file", str(weights)]) == Exit.OK
    made = capsys.readouterr().out
    assert f"made in {files}, its state in PostgreSQL" in made
    assert address not in made
    with_database = Store.open(files, database=address)
    assert with_database.models.payload(with_database.load().models[0]) == tiny_payload()
    with_database.close()
    assert main(["audit", "show", *where]) == Exit.OK
    assert "federation.created" in capsys.readouterr().out
    assert main(["audit", "verify", "--state", str(files)]) == Exit.USAGE
    assert "is in PostgreSQL" in capsys.readouterr().err
    assert main(["serve", "--state", str(files), "--insecure"]) == Exit.USAGE
    assert "is in PostgreSQL" in capsys.readouterr().err


def test_workers_and_operator_commands_say_what_they_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = make_state(tmp_path / "state")
    assert main(["serve", "--state", str(state), "--insecure", "--workers", "2"]) == Exit.USAGE
    assert "--workers needs --state postgresql" in capsys.readouterr().err
    assert main(["status", "--state", "postgresql://puf@db/puf"]) == Exit.USAGE
    assert "directory of --keys or --files" in capsys.readouterr().err
    assert main(["backup", "--state", "postgresql://puf@db/puf", "--out", str(tmp_path / "x")]) == Exit.USAGE
    assert "directory of --keys or --files" in capsys.readouterr().err
