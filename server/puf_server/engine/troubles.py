"""What the server retries without success, for the operator. Empty when all is well."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from enum import StrEnum


class Trouble(StrEnum):
    """One kind of trouble. A later report of the same kind replaces the earlier one."""

    STATE = "state"
    UPLOADS = "uploads"
    FOLD = "fold"
    LOG = "log"
    AUDIT = "audit"
    CLOCK = "clock"
    CLIENTS = "clients"


class Troubles:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._open: dict[Trouble, str] = {}
        self._lock = threading.Lock()

    def report(self, kind: Trouble, message: str) -> bool:
        """Shows a message until `clear`. Returns whether there was none of this kind."""
        with self._lock:
            new = kind not in self._open
            self._open[kind] = message
            return new

    def clear(self, kind: Trouble) -> bool:
        """Returns whether there was a message of this kind."""
        with self._lock:
            return self._open.pop(kind, None) is not None

    def open(self) -> Mapping[Trouble, str]:
        """The messages, in the order of their kinds."""
        with self._lock:
            return {kind: self._open[kind] for kind in Trouble if kind in self._open}

    def text(self) -> str:
        return "; ".join(self.open().values())
