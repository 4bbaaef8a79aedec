"""How fast each client's line was when it last moved tensors: for the operator, who wonders whom a round waits for."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

__all__ = ["Line", "Rates"]


@dataclass(frozen=True, slots=True)
class Line:
    """Tensor bytes a second in the last whole transfer each way; 0 before the first."""

    down: float = 0.0
    up: float = 0.0


class Rates:
    """In memory only, of whole transfers only. Used on the event loop alone."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}

    def of(self, name: str) -> Line:
        return self._lines.get(name, Line())

    def went_down(self, name: str, nbytes: int, seconds: float) -> None:
        self._lines[name] = Line(_rate(nbytes, seconds), self.of(name).up)

    def came_up(self, name: str, nbytes: int, seconds: float) -> None:
        self._lines[name] = Line(self.of(name).down, _rate(nbytes, seconds))

    def forget(self, name: str) -> None:
        self._lines.pop(name, None)

    def typical(self) -> Line:
        """The median over clients, each way."""
        down = [line.down for line in self._lines.values() if line.down]
        up = [line.up for line in self._lines.values() if line.up]
        return Line(statistics.median(down) if down else 0.0, statistics.median(up) if up else 0.0)


def _rate(nbytes: int, seconds: float) -> float:
    return nbytes / max(seconds, 1e-6)
