"""The time of a federation. It runs with the monotonic clock and follows the wall clock as long as that is plausible.

Liveness and the deadlines of rounds must not depend on the wall clock, which can be set. The deadlines of requests are
dates and must follow it. So there is one clock: it advances with the monotonic clock, and `jump` tells how far the wall
clock is from it. The engine follows small steps. After a larger one this clock continues as before, until the wall clock
is back or the operator accepts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from puf_common.clock import steady_time
from puf_common.dates import to_utc
from puf_common.logging import get_logger
from puf_server.engine.troubles import Trouble, Troubles

log = get_logger(__name__)

# A larger difference is a jump, not an adjustment.
TOLERANCE = 60.0
# At a start the wall clock may be this far ahead of the last recorded time: no server ran meanwhile.
DOWNTIME = 3600.0
# A smaller step changes no decision.
_NOTICEABLE = 1.0


class FederationClock:
    """Returns the federation's time when called. Safe to use from any thread."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = steady_time) -> None:
        self._wall = wall
        self._steady = steady
        self._offset = wall() - steady()

    def __call__(self) -> float:
        return self._steady() + self._offset

    def jump(self) -> float:
        """Seconds by which the wall clock is ahead of this clock."""
        return self._wall() - self()

    def move(self, seconds: float) -> None:
        self._offset += seconds


class ClockWatch:
    """Lets the federation's clock follow the wall clock, and shows a jump to the operator.

    `follow` moves the clock and the state by a number of seconds; its second argument says whether the operator asked.
    """

    def __init__(self, clock: FederationClock, troubles: Troubles, follow: Callable[[float, bool], None]) -> None:
        self._clock = clock
        self._troubles = troubles
        self._follow = follow
        # How far ahead a plausible wall clock may be: more after a start from the last recorded time.
        self._ahead = TOLERANCE

    def start(self, last: float | None, deadline_between: Callable[[float, float], str]) -> None:
        """Continues from the last recorded time if the wall clock is not plausible.

        It is not if it is behind that time, or so far ahead that a request passed its deadline while no server ran.
        """
        now = self._clock()
        if last is None or -TOLERANCE <= now - last <= DOWNTIME:
            return
        if now < last or deadline_between(last, now):
            self._clock.move(last - now)
            self._ahead = DOWNTIME
            self.check()

    def check(self) -> None:
        """Follows small steps of the wall clock, and reports a jump until the clock is back."""
        jump = self._clock.jump()
        if not -TOLERANCE <= jump <= self._ahead:
            self._report(jump)
            return
        self._ahead = TOLERANCE
        if self._troubles.clear(Trouble.CLOCK):
            log.info("the system clock is plausible again")
        if abs(jump) > _NOTICEABLE:
            log.info("following a step of the system clock", seconds=round(jump, 1))
            self._follow(jump, False)
        else:
            self._clock.move(jump)

    def accept(self) -> None:
        """The operator says that the wall clock is right."""
        jump = self._clock.jump()
        if abs(jump) > TOLERANCE:
            log.warning("the operator accepts the system clock", seconds=round(jump))
            self._follow(jump, True)
        self._troubles.clear(Trouble.CLOCK)

    def _report(self, jump: float) -> None:
        far = f"{jump / 86400:+.1f} days" if abs(jump) >= 86400 else f"{jump:+,.0f} s"
        message = (
            f"the system clock is {far} away from the federation's time, {to_utc(self._clock())}: no request passes its "
            "deadline by that, until the clock is back or the operator accepts it"
        )
        if self._troubles.report(Trouble.CLOCK, message):
            log.error("the system clock jumped", seconds=round(jump), federation_time=to_utc(self._clock()))
