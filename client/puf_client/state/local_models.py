"""A client's own model as it was at the end of its last rounds: kept only where the federation says that its method needs it.

It lies in the client's state directory and never leaves the machine. The two newest are kept: the last one may be of a
round that closes without it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from puf_common.errors import NotFound
from puf_common.tensors.chunks import Payload

if TYPE_CHECKING:
    from puf_client.state.directory import StateDir

__all__ = ["WORD", "LastModels"]

# As the server announces it.
WORD = "last-local-model"
_KEPT = 2


class LastModels:
    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._folder = state.path / "last-models"

    def keep(self, membership: int, number: int, payload: Payload) -> None:
        """Durable before the update is sent: once it is folded, the server may ask for this model."""
        self._state.write(self._file(membership, number), bytes(payload))
        for old in self._files()[:-_KEPT]:
            old.unlink(missing_ok=True)

    def of_round(self, membership: int, number: int, nbytes: int) -> bytes:
        with suppress(FileNotFoundError):
            content = self._file(membership, number).read_bytes()
            if len(content) == nbytes:
                return content
        raise NotFound(
            f"this client has not kept its own model of round {number}, which the federation's method starts from; it was "
            "trained on another machine or with another --state"
        )

    def forget(self) -> None:
        for path in self._files():
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.model"))

    def _file(self, membership: int, number: int) -> Path:
        return self._folder / f"{membership:06d}-{number:08d}.model"
