"""What the server retries without success, for the operator. Empty when all is well."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from enum import StrEnum


class Trouble(StrEnum):
    """One kind of trouble. A later report of the same kind replaces the earlier one."""

    STATE = "state"
    UPLOADS = "uploads"
    FOLD = "fold"
    FILES = "files"
    DISK = "disk"
    LOG = "log"
    AUDIT = "audit"
    CLOCK = "clock"
    CLIENTS = "clients"


class Troubles:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        # Each message with the monotonic time at which it is outdated.
        self._open: dict[Trouble, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def report(self, kind: Trouble, message: str, seconds: float = math.inf) -> bool:
        """Shows a message until `clear`, at most for so many seconds. Returns whether there was none of this kind."""
        with self._lock:
            new = kind not in self._current()
            self._open[kind] = (message, time.monotonic() + seconds)
            return new

    def clear(self, kind: Trouble) -> bool:
        """Returns whether there was a message of this kind."""
        with self._lock:
            return self._open.pop(kind, None) is not None

    def open(self) -> Mapping[Trouble, str]:
        """The messages, in the order of their kinds."""
        with self._lock:
            return self._current()

    def _current(self) -> dict[Trouble, str]:
        now = time.monotonic()
        return {kind: self._open[kind][0] for kind in Trouble if kind in self._open and now < self._open[kind][1]}

    def text(self) -> str:
        return "; ".join(self.open().values())
