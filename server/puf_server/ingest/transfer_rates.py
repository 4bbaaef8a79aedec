"""Bytes that tensors took since the process began, and how fast each client's last transfer was, for the operator."""

from __future__ import annotations

import statistics
import threading
from dataclasses import dataclass

__all__ = ["TransferRate", "TransferRates"]


@dataclass(frozen=True, slots=True)
class TransferRate:
    """Tensor bytes per second of the last whole transfer in each direction; 0 before the first."""

    down: float = 0.0
    up: float = 0.0


class TransferRates:
    """In memory only. Safe to use from any thread."""

    def __init__(self) -> None:
        self._rates: dict[str, TransferRate] = {}
        self._lock = threading.Lock()
        self._bytes_received = 0
        self._bytes_sent = 0

    @property
    def bytes_received(self) -> int:
        return self._bytes_received

    @property
    def bytes_sent(self) -> int:
        return self._bytes_sent

    def arrived(self, nbytes: int) -> None:
        """Counts bytes of a chunk, whatever becomes of its update."""
        with self._lock:
            self._bytes_received += nbytes

    def sent(self, nbytes: int) -> None:
        """Counts bytes of a model that a client has fetched."""
        with self._lock:
            self._bytes_sent += nbytes

    def of(self, name: str) -> TransferRate:
        with self._lock:
            return self._rates.get(name, TransferRate())

    def downloaded(self, name: str, nbytes: int, seconds: float) -> None:
        with self._lock:
            self._rates[name] = TransferRate(_rate(nbytes, seconds), self._rates.get(name, TransferRate()).up)

    def uploaded(self, name: str, nbytes: int, seconds: float) -> None:
        with self._lock:
            self._rates[name] = TransferRate(self._rates.get(name, TransferRate()).down, _rate(nbytes, seconds))

    def names(self) -> list[str]:
        with self._lock:
            return list(self._rates)

    def forget(self, name: str) -> None:
        with self._lock:
            self._rates.pop(name, None)

    def typical(self) -> TransferRate:
        """The median over clients, in each direction."""
        with self._lock:
            rates = list(self._rates.values())
        down = [rate.down for rate in rates if rate.down]
        up = [rate.up for rate in rates if rate.up]
        return TransferRate(statistics.median(down) if down else 0.0, statistics.median(up) if up else 0.0)


def _rate(nbytes: int, seconds: float) -> float:
    return nbytes / max(seconds, 1e-6)
