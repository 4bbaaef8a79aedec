"""The client's local models of its last rounds, stored only if the federation's method needs them.

They are in the client's state directory and never leave the machine. The two newest are kept, because the last round may
close without this client's update.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from puf_common.errors import NotFound
from puf_common.tensors.chunks import Payload

if TYPE_CHECKING:
    from puf_client.state.directory import StateDirectory

# The server announces with this name that the method needs local models.
LOCAL_MODEL = "last-local-model"
_KEPT = 2


class LocalModels:
    def __init__(self, state: StateDirectory) -> None:
        self._state = state
        self._folder = state.path / "last-models"

    def write(self, membership: int, number: int, payload: Payload) -> None:
        """Stores a model durably. Call it before sending the update: afterwards the server may ask for this model."""
        self._state.write(self._file(membership, number), bytes(payload))
        for old in self._files()[:-_KEPT]:
            self._state.delete(old)

    def read(self, membership: int, number: int, nbytes: int) -> bytes:
        """Returns the model of a round. Raises `NotFound` if it is not stored with that size."""
        with suppress(FileNotFoundError):
            content = self._file(membership, number).read_bytes()
            if len(content) == nbytes:
                return content
        raise NotFound(
            f"this client has not stored its local model of round {number}, which the federation's method needs; it was "
            "trained on another machine or with another --state"
        )

    def delete(self) -> None:
        for path in self._files():
            self._state.delete(path)
        with suppress(OSError):
            self._folder.rmdir()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.model"))

    def _file(self, membership: int, number: int) -> Path:
        return self._folder / f"{membership:06d}-{number:08d}.model"
