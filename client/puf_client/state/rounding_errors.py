"""What rounding has changed in the client's last updates, for updates of 8-bit numbers (see `session.rounding`).

The error after a round is one file. A repeated round reads the error of the round before it again, so that every attempt
sends the same bytes. An error depends on the client's samples: it is deleted when the client files a request or is forgotten.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from puf_common.tensors.chunks import Payload

if TYPE_CHECKING:
    from puf_client.state.directory import StateDirectory

# The last round may be repeated: it needs the error of the round before it.
_KEPT = 2


class RoundingErrors:
    def __init__(self, state: StateDirectory) -> None:
        self._state = state
        self._folder = state.path / "rounding-errors"

    def read(self, membership: int, before: int, nbytes: int) -> bytes | None:
        """Returns the newest error of a round before this one; None if there is none of this membership and size."""
        names = [path for path in self._files() if f"{membership:06d}-" <= path.name < f"{membership:06d}-{before:08d}"]
        if not names:
            return None
        with suppress(FileNotFoundError):
            content = names[-1].read_bytes()
            return content if len(content) == nbytes else None
        return None

    def write(self, membership: int, number: int, error: Payload) -> None:
        """Stores the error of a round durably. Call it before sending the update."""
        self._state.write(self._folder / f"{membership:06d}-{number:08d}.error", bytes(error))
        for old in self._files()[:-_KEPT]:
            old.unlink(missing_ok=True)

    def delete(self) -> None:
        for path in self._files():
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.error"))
