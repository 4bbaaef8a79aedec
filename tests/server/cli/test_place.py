"""Commands find a federation in a directory, or in PostgreSQL with a directory of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.object_store import ObjectStore
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


def test_files_in_an_object_store_need_a_database_and_a_directory_of_keys(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--files belongs to --state postgresql"):
        place(str(tmp_path), "s3://bucket/prefix")
    with pytest.raises(UsageError, match="--keys belongs to --state postgresql"):
        place(str(tmp_path), "", tmp_path)
    with pytest.raises(UsageError, match="needs --keys DIR"):
        place("postgresql://puf@db/puf", "s3://bucket/prefix")
    with pytest.raises(UsageError, match="--keys belongs to --files s3"):
        place("postgresql://puf@db/puf", str(tmp_path), tmp_path)
    with pytest.raises(UsageError, match="without credentials"):
        place("postgresql://puf@db/puf", "s3://key:secret@bucket/prefix", tmp_path)
    assert place("postgresql://puf@db/puf", "s3://bucket/prefix/", tmp_path, new=True)[0] == tmp_path


def test_a_federation_is_made_in_an_object_store_and_served_only_from_there(
    tmp_path: Path, postgres: Postgres, object_store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    (weights,) = (make_state(tmp_path / "other") / "models").iterdir()
    url, keys = object_store.bucket(), tmp_path / "keys"
    where = ["--state", postgres.address(), "--keys", str(keys)]
    made = ["init", *where, "--files", url, "--model", "tiny", "--model-file", str(weights)]
    assert main(made) == Exit.OK
    assert f"--files {url} --keys {keys}" in capsys.readouterr().out
    assert [key.partition("-")[0] for key in object_store.keys(url)] == ["models/v000000"]
    assert main(["audit", "show", *where, "--files", f"{url}/"]) == Exit.OK
    assert "federation.created" in capsys.readouterr().out
    other = object_store.bucket()
    assert main(["serve", *where, "--files", other, "--insecure"]) != Exit.OK
    assert f"are in {url}, not in {other}" in capsys.readouterr().err
    object_store.versioned(url)
    assert main(["serve", *where, "--files", url, "--insecure"]) == Exit.USAGE
    assert "suspend its versioning" in capsys.readouterr().err
