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

# Further updates are files, so that memory does not grow with the clients of a round.
_MOST_BYTES = 128 << 20


class UpdatesInMemory:
    """The files of a federation with updates in memory, at most 128 MiB and one update. `files` stores all others."""

    def __init__(self, files: StoredFiles) -> None:
        self._files = files
        self._updates: dict[str, bytes] = {}

    def new(self, draft: str, points: str = "", *, cache: bool = False) -> NewStoredFile:
        if draft.startswith(f"{SPOOL}/") and sum(map(len, self._updates.values())) < _MOST_BYTES:
            return _NewUpdate(self._updates)
        return self._files.new(draft, points, cache=cache)

    def read(self, name: str, last: int | None = None) -> StoredFile:
        content = self._updates.get(name)
        if content is None:
            return self._files.read(name, last)
        return _Update(content if last is None else content[len(content) - last :])

    def exists(self, name: str) -> bool:
        return name in self._updates or self._files.exists(name)

    def names(self, folder: str = "") -> list[str]:
        return [*self._files.names(folder), *(sorted(self._updates) if folder in ("", SPOOL) else ())]

    def delete(self, names: Iterable[str]) -> None:
        self._files.delete([name for name in names if self._updates.pop(name, None) is None])

    def where(self, name: str) -> str:
        return self._files.where(name)

    def free_bytes(self) -> int | None:
        return self._files.free_bytes()


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
