"""Bytes that tensors took since the process began, and how fast each client's last transfer was, for the operator."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransferRate:
    """Tensor bytes per second of the last whole transfer in each direction; 0 before the first."""

    down: float = 0.0
    up: float = 0.0


class TransferRates:
    """In memory only, of members only. Safe to use from any thread. `is_member` tells whether a name is a member now."""

    def __init__(self, is_member: Callable[[str], bool]) -> None:
        self._is_member = is_member
        self._rates: dict[str, TransferRate] = {}
        self._lock = threading.Lock()
        self.bytes_received = 0
        self.bytes_sent = 0

    def count(self, *, received: int = 0, sent: int = 0) -> None:
        """Counts tensor bytes, whatever becomes of them."""
        with self._lock:
            self.bytes_received += received
            self.bytes_sent += sent

    def of(self, name: str) -> TransferRate:
        with self._lock:
            return self._rates.get(name, TransferRate())

    def record(self, name: str, seconds: float, *, down: int = 0, up: int = 0) -> None:
        """Stores the rate of a whole transfer of so many bytes down or up."""
        seconds = max(seconds, 1e-6)
        with self._lock:
            last = self._rates.get(name, TransferRate())
            self._rates[name] = TransferRate(down / seconds or last.down, up / seconds or last.up)
        # A client may be forgotten during its transfer.
        if not self._is_member(name):
            self.drop_former_members()

    def drop_former_members(self) -> None:
        with self._lock:
            self._rates = {name: rate for name, rate in self._rates.items() if self._is_member(name)}

    def typical(self) -> TransferRate:
        """The median over clients, in each direction."""
        with self._lock:
            rates = list(self._rates.values())
        down = [rate.down for rate in rates if rate.down]
        up = [rate.up for rate in rates if rate.up]
        return TransferRate(statistics.median(down) if down else 0.0, statistics.median(up) if up else 0.0)
