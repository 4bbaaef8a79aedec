"""How many bytes of updates one client may have on disk: those that are kept for the round, and those on their way."""

from __future__ import annotations

import threading
from collections import Counter

from puf_common.errors import TooMuch
from puf_common.tensors.manifest import UPDATE, Manifest
from puf_server.core.config import Limits
from puf_server.core.state.rounds import Round

__all__ = ["Quota", "Share"]

_UPDATES = 4


class Share:
    """Bytes that are spoken for, until they are released."""

    def __init__(self, quota: Quota, name: str, nbytes: int) -> None:
        self._quota = quota
        self._name = name
        self._nbytes = nbytes

    def release(self) -> None:
        self._quota.give_back(self._name, self._nbytes)
        self._nbytes = 0


class Quota:
    """Safe to use from several threads."""

    def __init__(self, limits: Limits, manifest: Manifest) -> None:
        self._most = limits.client_bytes or _UPDATES * manifest.nbytes(UPDATE)
        self._coming: Counter[str] = Counter()
        self._lock = threading.Lock()

    def taken(self, name: str, current: Round, nbytes: int) -> Share:
        """Room for one more update of this client, before a byte of it is written."""
        kept = sum(u.nbytes for key, u in current.received.items() if key.partition("/")[0] == name)
        with self._lock:
            if kept + self._coming[name] + nbytes > self._most:
                raise TooMuch(f"{name} has {kept + self._coming[name]} bytes of updates here", limit=self._most)
            self._coming[name] += nbytes
        return Share(self, name, nbytes)

    def give_back(self, name: str, nbytes: int) -> None:
        with self._lock:
            self._coming[name] -= nbytes
            if self._coming[name] <= 0:
                del self._coming[name]
