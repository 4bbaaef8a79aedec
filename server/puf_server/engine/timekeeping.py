"""Keeps the federation's time: follows the wall clock where it is plausible, and records the time for the next start."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from puf_common.logging import get_logger
from puf_server.core import clock_changes
from puf_server.core.state.state import State
from puf_server.engine.clock import TOLERANCE, ClockWatch, FederationClock
from puf_server.engine.troubles import Trouble

if TYPE_CHECKING:
    from puf_server.engine.engine import Engine

# Seconds between two records of the time.
_RECORD_SECONDS = 300.0
log = get_logger(__name__)


class Timekeeping:
    """Does nothing for a clock that is not a FederationClock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clock = engine.clock if isinstance(engine.clock, FederationClock) else None
        self._watch = ClockWatch(self._clock, engine.troubles, self._move) if self._clock is not None else None
        # Several processes follow one wall clock. Each moves its own time, and only an accepted jump moves the state.
        self._shared = engine.shared
        self._recorded_at = -math.inf

    def start(self) -> None:
        if self._watch is not None:
            state = self._engine.state
            self._watch.start(self._engine.store.last_time(), partial(clock_changes.deadline_between, state))

    def check(self) -> None:
        """Follows small steps of the wall clock, and shows jumps."""
        if self._watch is None or self._clock is None:
            return
        jump = self._clock.jump()
        if self._shared and abs(jump) > TOLERANCE and self._accepted(jump):
            log.warning("the operator has accepted the system clock at another server", seconds=round(jump))
            self._move_own(jump)
        self._watch.check()

    def _accepted(self, jump: float) -> bool:
        """Whether another process has recorded a time after this jump: the operator has accepted it there."""
        last = self._engine.read_time()
        return last is not None and abs(last - (self._engine.clock() + jump)) <= TOLERANCE

    def accept(self) -> None:
        """The operator says that the system's clock is right. Has no effect where it did not jump."""
        if self._watch is not None:
            self._watch.accept()

    def record(self) -> None:
        """Stores the time now and then, for the next start. After a failed write this finds out whether writing works."""
        now = self._engine.clock()
        due = self._watch is not None and abs(now - self._recorded_at) >= _RECORD_SECONDS
        if due or Trouble.STATE in self._engine.troubles.open():
            self._engine.write(lambda: self._engine.store.record_time(now))
            self._recorded_at = now

    def record_last(self) -> None:
        """Stores the time at the end of the process."""
        if self._watch is not None:
            self._engine.store.record_time(self._engine.clock())

    def _move(self, seconds: float, accepted: bool) -> None:
        """Moves the federation's clock, and everything that waits for a duration."""
        if self._shared and not accepted:
            self._move_own(seconds)
            return
        clock = self._clock
        assert clock is not None
        now = clock() + seconds if accepted else None

        def moved(state: State, _: float) -> State:
            state = clock_changes.moved(state, seconds)
            # The time is recorded with it: a start after a crash must not take the accepted time for a jump.
            return state if now is None else state.note("clock.accepted", now, seconds=round(seconds))

        self._engine.change(
            moved, lambda presence, _: presence.moved(seconds), now=now, then=lambda: clock.move(seconds)
        )

    def _move_own(self, seconds: float) -> None:
        clock = self._clock
        assert clock is not None
        self._engine.change(
            lambda state, _: state, lambda presence, _: presence.moved(seconds), then=lambda: clock.move(seconds)
        )
