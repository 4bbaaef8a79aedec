"""The spool: files of the open round's updates, and of updates that are still arriving."""

from __future__ import annotations

from pathlib import Path

from puf_server.core.state.rounds import Round
from puf_server.storage.durable import Files, FileSource, NewFile, remove
from puf_server.storage.layout import draft_name, spool_name


class Spool:
    """Safe to use from any thread."""

    def __init__(self, folder: Path, files: Files, owner: str) -> None:
        self._folder = folder
        self._files = files
        self._owner = owner

    def path(self, name: str) -> Path:
        return self._folder / name

    def new(self) -> NewFile:
        """The file of an update that arrives. No round knows its name, so that a restart deletes it."""
        return NewFile(self._folder / draft_name("arriving", self._owner), self._files, "spool")

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
