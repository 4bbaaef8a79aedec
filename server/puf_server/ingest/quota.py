"""Bytes of updates that one client may have on disk: received in the open round, and still arriving."""

from __future__ import annotations

import threading

from puf_common.errors import TooMuch
from puf_common.tensors.manifest import UPDATE, Manifest
from puf_server.core.config import Limits
from puf_server.core.state.rounds import Round

# The limit where the configuration states none, in whole updates.
_UPDATES = 4


class Quota:
    """Safe to use from any thread."""

    def __init__(self, limits: Limits, manifest: Manifest) -> None:
        self._most = limits.client_bytes or _UPDATES * manifest.nbytes(UPDATE)
        # Client and bytes of each upload that is still arriving.
        self.arriving: dict[object, tuple[str, int]] = {}
        self._lock = threading.Lock()

    def reserve(self, upload: object, name: str, current: Round, nbytes: int) -> None:
        """Reserves room for an upload before a byte of it is written. Raises TooMuch where there is none."""
        with self._lock:
            self._require(name, current, nbytes)
            self.arriving[upload] = (name, nbytes)

    def require(self, name: str, current: Round, elsewhere: int) -> None:
        """Raises TooMuch where the client has no room because so many bytes are arriving at other processes."""
        with self._lock:
            self._require(name, current, elsewhere)

    def _require(self, name: str, current: Round, more: int) -> None:
        used = sum(u.nbytes for key, u in current.received.items() if key.partition("/")[0] == name)
        used += sum(reserved for client, reserved in self.arriving.values() if client == name)
        if used + more > self._most:
            raise TooMuch(f"{name} has {used} bytes of updates here", limit=self._most)

    def release(self, upload: object) -> None:
        """Ends a reservation. A second call has no effect."""
        with self._lock:
            self.arriving.pop(upload, None)
