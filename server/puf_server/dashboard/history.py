"""The rounds of a federation as series for charts, thinned out to what a chart can show."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from puf_common.errors import PufError
from puf_common.v1 import operator_pb2 as op
from puf_server.dashboard.upstream import Upstream

# Points of a chart.
MOST_POINTS = 1000
_MOST_MARKS = 200
_PAGE = 1000
# Scores of the newest rounds may arrive after the round.
_READ_AGAIN = 20
_RETRY_SECONDS = 0.5
_FORGETTING = ("unlearn", "reset", "rollback")


class Point(NamedTuple):
    """One committed round. Seconds and score are None where they were not recorded."""

    number: int
    kind: str
    score: float | None
    collecting: float | None
    summing: float | None
    bytes_up: float
    bytes_down: float


class History:
    """All committed rounds. Only those that are new are asked for."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._points: dict[int, Point] = {}
        self._lock = asyncio.Lock()

    async def points(self) -> list[Point]:
        """Every committed round in order, as of now."""
        async with self._lock:
            await self._read()
            return [self._points[number] for number in sorted(self._points)]

    async def prepare(self) -> None:
        """Reads the rounds before the first page asks for them."""
        while True:
            with suppress(PufError):
                await self.points()
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self) -> None:
        known = max(self._points, default=0) - _READ_AGAIN
        before = 0
        while True:
            request = op.ListRoundsRequest(limit=_PAGE if before or known <= 0 else 2 * _READ_AGAIN, before=before)
            rounds: Sequence[op.RoundInfo] = (await self._upstream.call("ListRounds", request)).rounds
            if before == 0 and rounds and rounds[0].number < known:
                # A server with another history.
                self._points, known = {}, 0
            self._points |= {r.number: _point(r) for r in rounds if r.phase == "committed"}
            if not rounds or rounds[-1].number <= max(known, 1):
                return
            before = rounds[-1].number


def _point(r: op.RoundInfo) -> Point:
    closed = r.closed_at or None
    return Point(
        r.number,
        r.kind,
        r.score.accuracy if r.HasField("score") else None,
        closed - r.opened_at if closed else None,
        r.committed_at - closed if closed else None,
        float(r.bytes_up),
        float(r.bytes_down),
    )


def series(points: Sequence[Point], most: int = MOST_POINTS) -> dict[str, Any]:
    """Columns for charts: at most `most` points, each the last round of a group with the group's mean values."""
    size = max(1, math.ceil(len(points) / most))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    marks = [{"round": p.number, "kind": p.kind} for p in points if p.kind in _FORGETTING]
    return {
        "rounds": [group[-1].number for group in groups],
        "score": [next((p.score for p in reversed(group) if p.score is not None), None) for group in groups],
        "collecting": [_mean(p.collecting for p in group) for group in groups],
        "summing": [_mean(p.summing for p in group) for group in groups],
        "up": [_mean(p.bytes_up for p in group) for group in groups],
        "down": [_mean(p.bytes_down for p in group) for group in groups],
        "marks": marks[-_MOST_MARKS:],
        "rounds_per_point": size,
    }


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None
