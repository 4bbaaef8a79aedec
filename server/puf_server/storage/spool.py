"""The spool: files of the open round's updates, and of updates that are still arriving."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from puf_server.core.state.rounds import Round
from puf_server.storage.durable import Files, FileSource, NewFile, remove
from puf_server.storage.layout import draft_name, owner_of, spool_name


class Spool:
    """Safe to use from any thread."""

    def __init__(self, folder: Path, files: Files, owner: str) -> None:
        self._folder = folder
        self._files = files
        self._owner = owner

    def path(self, name: str) -> Path:
        return self._folder / name

    def new(self, client: str = "", upload: str = "", nbytes: int = 0) -> NewFile:
        """The file of an update that arrives. No round knows its name, so that a restart deletes it.

        The name tells other processes of the federation which client's update it is, and how long it will be.
        """
        stem = f"{_short(client)}-{_short(upload)}-{nbytes}"
        return NewFile(self._folder / draft_name(stem, self._owner), self._files, "spool")

    def arriving_elsewhere(self, client: str) -> int:
        """Bytes of this client's updates that are arriving at other processes of the federation."""
        return sum(int(name.partition(".")[0].rpartition("-")[2]) for name in self._elsewhere(f"{_short(client)}-"))

    def part_elsewhere(self, client: str, upload: str) -> FileSource | None:
        """The longest part of an upload that began at another process."""
        sizes: dict[Path, int] = {}
        for name in self._elsewhere(f"{_short(client)}-{_short(upload)}-"):
            # Its process may delete it meanwhile.
            with suppress(FileNotFoundError):
                sizes[self._folder / name] = (self._folder / name).stat().st_size
        try:
            return self._files.read(max(sizes, key=sizes.__getitem__)) if sizes else None
        except FileNotFoundError:
            return None

    def _elsewhere(self, begin: str) -> list[str]:
        if not self._owner:
            return []
        names = [n for n in self._files.listdir(self._folder) if n.startswith(begin) and n.endswith(".part")]
        return [name for name in names if owner_of(name) != self._owner]

    def read(self, current: Round, key: str) -> FileSource:
        """Random access to a received update."""
        return self._files.read(self.path(spool_name(current, key)))

    def delete(self, current: Round, key: str) -> None:
        """Deletes a received update. The caller removes it from the round."""
        remove(self.path(spool_name(current, key)), self._files)

    def damaged(self, current: Round | None) -> dict[str, str]:
        """Received updates that are missing or damaged on disk, each with the reason. Reads all of them."""
        found: dict[str, str] = {}
        if current is None:
            return found
        for key, update in current.received.items():
            try:
                with self.read(current, key) as source:
                    if source.nbytes != update.nbytes:
                        found[key] = f"{source.nbytes} of {update.nbytes} bytes are there"
                    elif source.digest(update.digest_kind) != update.digest:
                        found[key] = "it does not match its digest"
            except OSError as error:
                found[key] = f"it cannot be read: {error.strerror or error}"
        return found


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
