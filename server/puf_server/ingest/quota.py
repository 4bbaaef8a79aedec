"""Bytes of updates that one client may have on disk: received in the open round, and still arriving."""

from __future__ import annotations

import threading
from collections import Counter

from puf_common.errors import TooMuch
from puf_common.tensors.manifest import UPDATE, Manifest
from puf_server.core.config import Limits
from puf_server.core.state.rounds import Round

# The limit where the configuration states none, in whole updates.
_UPDATES = 4


class Share:
    """Bytes that are reserved until `release`. Releasing twice has no effect."""

    def __init__(self, quota: Quota, name: str, nbytes: int) -> None:
        self._quota = quota
        self._name = name
        self._nbytes = nbytes

    def release(self) -> None:
        with self._quota.lock:
            nbytes, self._nbytes = self._nbytes, 0
            self._quota.arriving[self._name] -= nbytes
            if not self._quota.arriving[self._name]:
                del self._quota.arriving[self._name]


class Quota:
    """Safe to use from any thread."""

    def __init__(self, limits: Limits, manifest: Manifest) -> None:
        self._most = limits.client_bytes or _UPDATES * manifest.nbytes(UPDATE)
        # Reserved bytes by client, guarded by `lock`.
        self.arriving: Counter[str] = Counter()
        self.lock = threading.Lock()

    def reserve(self, name: str, current: Round, nbytes: int) -> Share:
        """Room for one more update of this client, before a byte of it is written. Raises TooMuch where there is none."""
        received = sum(u.nbytes for key, u in current.received.items() if key.partition("/")[0] == name)
        with self.lock:
            used = received + self.arriving[name]
            if used + nbytes > self._most:
                raise TooMuch(f"{name} has {used} bytes of updates here", limit=self._most)
            self.arriving[name] += nbytes
        return Share(self, name, nbytes)
