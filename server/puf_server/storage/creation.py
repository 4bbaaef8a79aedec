"""Makes the state directory of a new federation."""

from __future__ import annotations

import json
from pathlib import Path

from puf_common.errors import UsageError
from puf_common.receipts.signing_key import SigningKey, fingerprint
from puf_common.tensors.digests import digest
from puf_common.tensors.manifest import Manifest
from puf_common.tensors.model_file import write_header
from puf_server.core.config import FederationConfig
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.state import State
from puf_server.storage import federation_file
from puf_server.storage.directory_files import DirectoryFiles
from puf_server.storage.durable import DISK, Files, new_file, remove, sync_directory
from puf_server.storage.layout import DATABASE, KEY_FILE, MODELS, Layout, model_name
from puf_server.storage.sqlite_database import SqliteDatabase
from puf_server.storage.state_database import IDENTITY, SIGNING_KEY
from puf_server.storage.stored_files import StoredFiles, published


def create(
    directory: Path,
    config: FederationConfig,
    manifest: Manifest,
    payload: bytes | bytearray,
    now: float,
    files: Files = DISK,
    database: str = "",
    objects: str = "",
) -> None:
    """Makes the state directory of a new federation. Raises where the directory already holds one.

    `database` is the address of a PostgreSQL database, `objects` that of files in an object store; empty: the directory
    has them.

    The description is written last. Before that there is no federation, and files of an interrupted attempt are replaced.
    """
    if (directory / federation_file.FILE).exists():
        raise UsageError(f"{directory} already holds a federation; choose another directory or serve that one")
    layout = Layout(directory)
    stored = _new_objects(objects, directory) if objects else DirectoryFiles(directory, files)
    _make_folders(layout, files)
    model = ModelVersion(
        version=0,
        round=0,
        digest=digest(payload, "sha256").hex(),
        nbytes=len(payload),
        status=ModelStatus.READY,
        created_at=now,
        blake3=digest(payload, "blake3").hex(),
    )
    _write_model(stored, model, manifest, payload)
    key = SigningKey.generate()
    with new_file(layout.signing_key, files) as file:
        file.write(key.to_pem())
    meta = {SIGNING_KEY: key.public.hex(), IDENTITY: json.dumps(federation_file.identity(config, manifest))}
    facts = {"federation": config.id, "model": config.model, "digest": model.digest}
    facts |= {"base_digest": config.base_digest} if config.base_digest else {}
    state = State(planned=config.plan.rounds, models={0: model})
    state = state.note("federation.created", now, **facts, key=fingerprint(key.public))
    if database:
        from puf_server.storage.postgres_database import PostgresDatabase

        PostgresDatabase.create(database, meta, state)
    else:
        SqliteDatabase.create(layout.database, meta, state, durable=files.durable)
    with new_file(directory / federation_file.FILE, files) as file:
        file.write(federation_file.described(config, manifest, elsewhere=bool(database), objects=objects))


def _new_objects(url: str, directory: Path) -> StoredFiles:
    """The place of files in an object store. Raises where it has files, or would keep what is deleted."""
    from puf_server.storage.object_files import ObjectFiles

    files = ObjectFiles(url, directory)
    files.refuse_keeping()
    if found := files.found():
        raise UsageError(f"{url} is not empty (it has {found[0].key}); delete its objects or choose another prefix")
    return files


def _write_model(files: StoredFiles, model: ModelVersion, manifest: Manifest, payload: bytes | bytearray) -> None:
    draft, name = f"{MODELS}/v{model.version:06d}", f"{MODELS}/{model_name(model.version, model.digest)}"
    with published(files.new(draft), name) as file:
        file.write(write_header(manifest, {"version": str(model.version), "digest": model.digest}))
        file.write(payload)


def _make_folders(layout: Layout, files: Files) -> None:
    """Makes the folders and deletes what an interrupted attempt left in them."""
    directory = layout.directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        for folder in (directory, layout.models, layout.spool):
            if not folder.is_dir():
                files.mkdir(folder)
    except OSError as error:
        raise UsageError(f"cannot make {directory}: {error.strerror}") from None
    sync_directory(directory.parent, files)
    for left in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", KEY_FILE):
        remove(directory / left, files)
