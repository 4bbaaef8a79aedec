"""Storage of a simulation: updates stay in memory, and the record of each is written with a later change.

A run that is interrupted starts again, so nothing has to be durable. Where a federation is closed within a round, the
updates of that round are lost, and its clients are asked again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from puf_common.files.durable import Bytes
from puf_server.core.state.state import State
from puf_server.storage.layout import SPOOL
from puf_server.storage.sqlite_database import SqliteDatabase
from puf_server.storage.state_rows import changed_fields
from puf_server.storage.stored_files import NewStoredFile, StoredFile, StoredFiles


class UpdatesInMemory:
    """The files of a federation with the spool in memory. All others are where `files` stores them."""

    def __init__(self, files: StoredFiles) -> None:
        self._files = files
        self._updates: dict[str, bytes] = {}

    def new(self, draft: str, points: str = "", *, cache: bool = False) -> NewStoredFile:
        return _NewUpdate(self._updates) if _is_update(draft) else self._files.new(draft, points, cache=cache)

    def read(self, name: str, last: int | None = None) -> StoredFile:
        if not _is_update(name):
            return self._files.read(name, last)
        if name not in self._updates:
            raise FileNotFoundError(name)
        content = self._updates[name]
        return _Update(content if last is None else content[len(content) - last :])

    def exists(self, name: str) -> bool:
        return name in self._updates if _is_update(name) else self._files.exists(name)

    def names(self, folder: str = "") -> list[str]:
        return [*self._files.names(folder), *(sorted(self._updates) if folder in ("", SPOOL) else ())]

    def delete(self, names: Iterable[str]) -> None:
        listed = list(names)
        for name in filter(_is_update, listed):
            self._updates.pop(name, None)
        self._files.delete(name for name in listed if not _is_update(name))

    def where(self, name: str) -> str:
        return self._files.where(name)

    def free_bytes(self) -> int | None:
        return self._files.free_bytes()


def _is_update(name: str) -> bool:
    return name.startswith(f"{SPOOL}/")


class _NewUpdate:
    def __init__(self, updates: dict[str, bytes]) -> None:
        self._updates = updates
        self._parts: list[bytes] = []

    def write(self, data: Bytes) -> None:
        self._parts.append(bytes(data))

    def publish(self, name: str) -> None:
        self._updates[name] = b"".join(self._parts)

    def discard(self) -> None:
        self._parts.clear()


class _Update(StoredFile):
    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)

    @property
    def nbytes(self) -> int:
        return len(self._content)

    def read_into(self, offset: int, out: memoryview) -> None:
        if offset + len(out) > self.nbytes:
            raise OSError("the update ends early")
        out[:] = self._content[offset : offset + len(out)]

    def close(self) -> None:
        pass


class LaterRecords(SqliteDatabase):
    """A database that writes a change of nothing but the open round together with the next other change."""

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        super().__init__(path, durable=durable)
        # The state in the database, where it is not the newest one.
        self._written: State | None = None

    def save(self, before: State | None, after: State, now: float | None = None, fold: int | None = None) -> bool:
        written = self._written or before
        if now is None and not after.notes and changed_fields(before, after) == {"round"}:
            self._written = written
            return False
        saved = super().save(written, after, now, fold)
        self._written = None
        return saved
