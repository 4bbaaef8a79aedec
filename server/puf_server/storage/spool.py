"""The spool: files of the open round's updates, and of updates that are still arriving."""

from __future__ import annotations

from contextlib import suppress

from puf_common.errors import Unavailable
from puf_server.core.state.rounds import Round
from puf_server.storage.layout import SPOOL, arriving, owner_of, spool_name
from puf_server.storage.stored_files import NewStoredFile, StoredFile, StoredFiles


class Spool:
    """Safe to use from any thread."""

    def __init__(self, files: StoredFiles, owner: str = "") -> None:
        self._files = files
        self._owner = owner

    def new(self, client: str = "", upload: str = "", nbytes: int = 0) -> NewStoredFile:
        """The file of an update that arrives. No round knows its name, so that a restart deletes it.

        The name tells other processes of the federation which client's update it is, and how long it will be.
        """
        return self._files.new(f"{arriving(client, upload)}{nbytes}", "spool")

    def arriving_elsewhere(self, client: str) -> int:
        """Bytes of this client's updates that are arriving at other processes of the federation."""
        return sum(int(name.partition(".")[0].rpartition("-")[2]) for name in self._elsewhere(arriving(client)))

    def part_elsewhere(self, client: str, upload: str) -> StoredFile | None:
        """The longest part of an upload that began at another process. An object store shows none."""
        parts: list[StoredFile] = []
        for name in self._elsewhere(arriving(client, upload)):
            # Its process may delete it meanwhile.
            with suppress(FileNotFoundError):
                parts.append(self._files.read(name))
        parts.sort(key=lambda part: part.nbytes)
        for part in parts[:-1]:
            part.close()
        return parts[-1] if parts else None

    def _elsewhere(self, begin: str) -> list[str]:
        if not self._owner:
            return []
        names = [n for n in self._files.names(SPOOL) if n.startswith(begin) and n.endswith(".part")]
        return [name for name in names if owner_of(name) != self._owner]

    def publish(self, file: NewStoredFile, name: str) -> None:
        file.publish(f"{SPOOL}/{name}")

    def exists(self, name: str) -> bool:
        return self._files.exists(f"{SPOOL}/{name}")

    def where(self, current: Round, key: str) -> str:
        return self._files.where(_name(current, key))

    def read(self, current: Round, key: str) -> StoredFile:
        """Random access to a received update."""
        return self._files.read(_name(current, key))

    def delete(self, current: Round, key: str) -> None:
        """Deletes a received update. The caller removes it from the round."""
        self._files.delete([_name(current, key)])

    def damaged(self, current: Round | None) -> dict[str, str]:
        """Received updates that are missing or damaged, each with the reason. Reads all of them."""
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
            except Unavailable:
                # Nothing is known about it. A fold compares its digest.
                continue
            except OSError as error:
                found[key] = f"it cannot be read: {error.strerror or error}"
        return found


def _name(current: Round, key: str) -> str:
    return f"{SPOOL}/{spool_name(current, key)}"
