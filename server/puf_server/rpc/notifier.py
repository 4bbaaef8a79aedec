"""Wakes callers that wait for the state to change, and only for changes that can concern them.

A thousand clients wait at the same time, each beats its heart and some send updates: were everybody woken each time, the
server would do nothing else. Presence and arrivals give nobody anything to do; after other changes each waiter's own
question is asked, all in a row, and only those are woken for whom there is something. The next such row keeps a distance
that leaves the larger part of the time for work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace

from puf_server.core.state.state import State

__all__ = ["Changes", "concerns_waiters"]

_LOOKED_AT = tuple(f.name for f in fields(State) if f.name not in ("notes", "round", "evaluation"))
# Asking whether there is something for a caller takes about 10 us; this leaves three quarters of the time.
_SECONDS_PER_WAITER = 0.00004


def concerns_waiters(before: State, after: State) -> bool:
    """Whether the change can make work, or be the news on a ticket: all but presence and arrivals."""
    if any(getattr(before, name) is not getattr(after, name) for name in _LOOKED_AT):
        return True
    return _without_arrivals(before) != _without_arrivals(after)


def _without_arrivals(state: State) -> tuple[object, object]:
    current, evaluation = state.round, state.evaluation
    return (
        None if current is None else replace(current, received={}),
        None if evaluation is None else replace(evaluation, answers={}, training={}),
    )


class Changes:
    """`notify` may be called from any thread, the rest on the event loop alone."""

    def __init__(self, state: State) -> None:
        self._loop = asyncio.get_running_loop()
        self._state = state
        self._waiting: dict[asyncio.Future[bool], Callable[[], bool]] = {}
        self._not_before = 0.0
        self._due: asyncio.TimerHandle | None = None

    def notify(self, state: State) -> None:
        self._loop.call_soon_threadsafe(self._look, state)

    async def until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Whether `ready` comes true within the time. Asked at once and after every change that can concern it."""
        if ready():
            return True
        woken: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[woken] = ready
        timer = self._loop.call_later(max(0.0, seconds), _tell, woken, False)
        try:
            return await woken
        finally:
            timer.cancel()
            del self._waiting[woken]

    def _look(self, state: State) -> None:
        before, self._state = self._state, state
        if self._due is None and concerns_waiters(before, state):
            self._due = self._loop.call_at(self._not_before, self._wake)

    def _wake(self) -> None:
        self._due = None
        self._not_before = self._loop.time() + len(self._waiting) * _SECONDS_PER_WAITER
        for woken, ready in self._waiting.items():
            if _wants(ready):
                _tell(woken, True)


def _wants(ready: Callable[[], bool]) -> bool:
    """Whoever cannot even be asked is woken, too: its own call meets the error, where it is answered."""
    try:
        return ready()
    except Exception:
        return True


def _tell(woken: asyncio.Future[bool], came: bool) -> None:
    if not woken.done():
        woken.set_result(came)
