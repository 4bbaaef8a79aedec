"""Wakes callers that wait for the state to change, only for changes that can concern them.

A thousand clients wait at the same time. If every heartbeat and every update woke all of them, the server would do nothing
else. Heartbeats change no state, and arriving updates give no client work. After any other change the notifier evaluates
the condition of each waiter and wakes those whose condition holds. Between two such passes it leaves time for other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace

from puf_server.core.state.state import State

_COMPARED = tuple(f.name for f in fields(State) if f.name not in ("notes", "round", "evaluation"))
# Evaluating one condition takes about 10 us. This leaves three quarters of the time for other work.
_SECONDS_PER_WAITER = 0.00004


def concerns_waiters(before: State, after: State) -> bool:
    """Whether the change can give a client work or change a ticket: any change except arriving updates and answers."""
    if any(getattr(before, name) is not getattr(after, name) for name in _COMPARED):
        return True
    return _without_arrivals(before) != _without_arrivals(after)


def _without_arrivals(state: State) -> tuple[object, object]:
    current, evaluation = state.round, state.evaluation
    return (
        None if current is None else replace(current, received={}),
        None if evaluation is None else replace(evaluation, answers={}, training={}, tables={}),
    )


class Notifier:
    """`notify` may be called from any thread, the rest on the event loop only."""

    def __init__(self, state: State) -> None:
        self._loop = asyncio.get_running_loop()
        self._state = state
        self._waiting: dict[asyncio.Future[bool], Callable[[], bool]] = {}
        self._not_before = 0.0
        self._due: asyncio.TimerHandle | None = None

    def notify(self, state: State) -> None:
        self._loop.call_soon_threadsafe(self._compare, state)

    async def until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Whether `ready` becomes true within the time. Evaluated at once and after every change that can concern it."""
        if ready():
            return True
        woken: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[woken] = ready
        timer = self._loop.call_later(max(0.0, seconds), _resolve, woken, False)
        try:
            return await woken
        finally:
            timer.cancel()
            del self._waiting[woken]

    def _compare(self, state: State) -> None:
        before, self._state = self._state, state
        if self._due is None and concerns_waiters(before, state):
            self._due = self._loop.call_at(self._not_before, self._wake)

    def _wake(self) -> None:
        self._due = None
        self._not_before = self._loop.time() + len(self._waiting) * _SECONDS_PER_WAITER
        for woken, ready in self._waiting.items():
            try:
                holds = ready()
            except Exception:
                # The waiter's own call reports the error.
                holds = True
            if holds:
                _resolve(woken, True)


def _resolve(woken: asyncio.Future[bool], result: bool) -> None:
    if not woken.done():
        woken.set_result(result)
