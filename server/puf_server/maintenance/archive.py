"""The file of a backup: a tar archive whose last entry lists all others with their digests.

state.db, federation.json, signing-key.pem, tokens.json, revoked.json, models/..., history/..., backup.json
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import IO, Any

from puf_common.errors import StorageCorrupted, UsageError
from puf_server.core import audit_chain
from puf_server.storage.durable import Files, sync_file
from puf_server.storage.layout import KEY_FILE

__all__ = ["FORMAT", "OPTIONAL", "extract", "write"]

FORMAT = 1
OPTIONAL = ("tokens.json", "revoked.json")
_LIST = "backup.json"
_REQUIRED = frozenset({"federation.json", "state.db", KEY_FILE})
_MODEL = re.compile(r"models/v\d{6,}-[0-9a-f]{16}\.safetensors")
_HISTORY = re.compile(r"history/\d{8,}\.[A-Za-z0-9._-]+-[0-9a-f]{16}")


def write(path: Path, opened: dict[str, IO[bytes]], head: audit_chain.Head, now: float, files: Files) -> str:
    """Writes the open files to a new archive, readable by its owner alone. Returns the SHA-256 of the archive."""
    sha = hashlib.sha256()
    out = files.create(path)
    try:

        class Hashed(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                sha.update(data)
                files.write(out, bytes(data))
                return len(data)

        listed: dict[str, str] = {}
        with tarfile.open(fileobj=Hashed(), mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for name, file in opened.items():
                reader = _HashingReader(file)
                tar.addfile(_entry(name, os.fstat(file.fileno()).st_size, now), reader)
                listed[name] = reader.sha.hexdigest()
            facts = {"format": FORMAT, "made_at": now, "line": head.number, "hash": head.hash.hex(), "files": listed}
            body = json.dumps(facts, indent=1, sort_keys=True).encode()
            tar.addfile(_entry(_LIST, len(body), now), io.BytesIO(body))
        sync_file(out, path, files)
    finally:
        files.close(out)
    return sha.hexdigest()


def extract(source: Path, directory: Path, files: Files) -> dict[str, Any]:
    """Unpacks an archive and returns its list. Accepts known names only and compares every file with its digest."""
    found: dict[str, str] = {}
    made: dict[str, Any] = {}
    try:
        with tarfile.open(source, "r:") as tar:
            for entry in tar:
                body = tar.extractfile(entry) if entry.isreg() else None
                if body is None or not _known(entry.name) or entry.name in found:
                    raise StorageCorrupted(f"{source} holds {entry.name!r}, which is not part of a backup")
                if entry.name == _LIST:
                    made = json.loads(body.read())
                else:
                    if not (folder := (directory / entry.name).parent).is_dir():
                        files.mkdir(folder)
                    found[entry.name] = _copy(body, directory / entry.name, files)
        listed, _, _ = dict(made["files"]), float(made["made_at"]), int(made["line"])
    except FileNotFoundError:
        raise UsageError(f"{source} does not exist") from None
    except (tarfile.TarError, ValueError, KeyError, TypeError, EOFError) as error:
        raise StorageCorrupted(f"{source} is not a backup, or it is damaged: {error}") from None
    if made.get("format") != FORMAT:
        raise StorageCorrupted(f"{source} is a backup of format {made.get('format')}; this server reads {FORMAT}")
    for name in sorted(_REQUIRED | listed.keys() | found.keys()):
        if name not in found or found[name] != listed.get(name):
            raise StorageCorrupted(f"{name} in {source} is missing or damaged", file=name)
    return made


class _HashingReader(io.RawIOBase):
    """Reads a file and hashes what it reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self.sha = hashlib.sha256()
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._file.read(len(buffer))
        self.sha.update(block)
        buffer[: len(block)] = block
        return len(block)


def _entry(name: str, size: int, now: float) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, int(now)
    return entry


def _known(name: str) -> bool:
    return name in (*_REQUIRED, *OPTIONAL, _LIST) or bool(_MODEL.fullmatch(name) or _HISTORY.fullmatch(name))


def _copy(body: IO[bytes], path: Path, files: Files) -> str:
    sha = hashlib.sha256()
    out = files.create(path)
    try:
        while block := body.read(1 << 20):
            sha.update(block)
            files.write(out, block)
        sync_file(out, path, files)
    finally:
        files.close(out)
    return sha.hexdigest()
