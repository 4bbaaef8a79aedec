"""A state directory belongs to one federation: id, model and recipe are stored in the database and compared."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.databases import sqlite
from tests.running import TINY, make_state, tiny_config, tiny_payload

from puf_common.errors import Mismatch, StorageCorrupted
from puf_common.tensors.manifest import Manifest, TensorSpec
from puf_common.tensors.model_file import save
from puf_server.engine.engine import Engine
from puf_server.maintenance import audit_reader
from puf_server.storage import federation_file
from puf_server.storage.migrations import SCHEMA, TABLES
from puf_server.storage.state_store import Store


def edited(directory: Path, **changes: Any) -> None:
    path = directory / federation_file.FILE
    content = json.loads(path.read_text())
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            content["config"][section][name] = value
        else:
            content["config"][section] = value
    path.write_text(json.dumps(content))


def sql(directory: Path, statement: str) -> None:
    with sqlite3.connect(directory / "state.db") as db:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"id": "f-other"}, r'id was "f-test" and is "f-other"'),
        ({"model": "zzz"}, r'model was "tiny" and is "zzz"'),
        ({"model_options": {"classes": "3"}}, "model_options was"),
        ({"task": "segmentation"}, "task was"),
        ({"recipe__lr": 9.9}, r"recipe\.lr was 0\.1 and is 9\.9"),
        ({"recipe__seed": 2}, r"recipe\.seed was 1 and is 2"),
    ],
)
def test_a_changed_model_recipe_or_id_is_refused_and_both_fingerprints_are_named(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    directory = make_state(tmp_path / "state")
    ours = federation_file.fingerprint(federation_file.identity(tiny_config(), TINY))
    edited(directory, **changes)
    theirs = federation_file.fingerprint(federation_file.identity(*federation_file.read(directory)))
    with pytest.raises(Mismatch, match=told) as refused:
        Store.open(directory)
    assert ours != theirs
    assert f"fingerprint {ours}" in refused.value.message
    assert f"fingerprint {theirs}" in refused.value.message
    # The directory is not locked: the right description opens it.
    before = tiny_config()
    (directory / federation_file.FILE).write_bytes(federation_file.described(before, TINY))
    Store.open(directory).close()


def test_another_manifest_is_refused(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state")
    other = Manifest((*TINY.tensors, TensorSpec("more", "f32", (2,))))
    (directory / federation_file.FILE).write_bytes(federation_file.described(tiny_config(), other))
    with pytest.raises(Mismatch, match="manifest was"):
        Store.open(directory)


def test_the_database_of_another_federation_is_refused(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state")
    other = make_state(tmp_path / "other", tiny_config().model_copy(update={"id": "f-2"}))
    shutil.copy(other / "state.db", directory / "state.db")
    with pytest.raises(Mismatch, match="federation f-2 with fingerprint"):
        Store.open(directory)


def test_the_operator_may_change_plan_and_policy(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state")
    edited(directory, plan__quorum=0.9, forgetting__kappa=3.0, title="another name")
    store = Store.open(directory)
    assert store.config.plan.quorum == 0.9
    store.close()


def test_a_setting_that_newer_software_adds_is_no_other_federation(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state")
    kept = federation_file.identity(tiny_config(), TINY)
    del kept["recipe.momentum"]
    federation_file.require_same(kept, federation_file.identity(tiny_config(), TINY), directory)
    with pytest.raises(Mismatch, match=r"recipe\.momentum was null and is 0\.5"):
        federation_file.require_same(
            kept, federation_file.identity(tiny_config(recipe={"momentum": 0.5}), TINY), directory
        )


def test_a_model_file_of_other_tensors_is_refused(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state")
    (path,) = (directory / "models").iterdir()
    renamed = Manifest(tuple(TensorSpec(f"x.{t.name}", t.dtype, t.shape, t.role) for t in TINY.tensors))
    save(path, renamed, tiny_payload(), {})
    with pytest.raises(StorageCorrupted, match=r"model 0 is damaged.*another model"):
        Engine(Store.open(directory), lambda: 0.0)


def test_state_of_version_1_is_migrated_once_and_audited(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state")
    sql(directory, "DELETE FROM meta WHERE key = 'identity'")
    sql(directory, "UPDATE meta SET value = '1' WHERE key = 'schema'")
    for table in TABLES:
        sql(directory, f"ALTER TABLE {table} DROP COLUMN crc")
    for _ in range(2):
        store = Store.open(directory)
        events = [e for (e,) in sqlite(store).execute("SELECT event FROM audit")]
        assert events.count("federation.migrated") == 1
        assert store.database.meta("schema") == str(SCHEMA)
        store.close()
    audit_reader.verify(directory, [])
    edited(directory, recipe__lr=9.9)
    with pytest.raises(Mismatch, match="fingerprint"):
        Store.open(directory)


@pytest.mark.parametrize(
    ("version", "told"), [("99", "a newer PUF wrote it"), ("0", "this server reads 1 to"), ("", "version none")]
)
def test_versions_that_cannot_be_read_are_refused_with_what_to_do(tmp_path: Path, version: str, told: str) -> None:
    directory = make_state(tmp_path / "state")
    sql(directory, f"UPDATE meta SET value = '{version}' WHERE key = 'schema'")
    before = (directory / "state.db").read_bytes()
    with pytest.raises(Mismatch, match=told):
        Store.open(directory)
    assert (directory / "state.db").read_bytes() == before
