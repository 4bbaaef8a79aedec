"""How often something may happen: a number of times per minute, with bursts of one minute's worth."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_NAMES = 20_000


class RateLimit:
    """A token bucket that holds one minute's worth and fills at a constant rate."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = max(1.0, per_minute)
        self._rate = per_minute / 60.0
        self._clock = clock
        self._left = self._most
        self._at = clock()

    def take(self) -> bool:
        """Whether one more is allowed now; counts it if so."""
        now = self._clock()
        self._left = min(self._most, self._left + self._rate * (now - self._at))
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    @property
    def retry_seconds(self) -> float:
        """Seconds from the last `take` until the next one is allowed."""
        return max(0.0, 1.0 - self._left) / self._rate


class RateLimits:
    """One rate limit per name. The least recently used name is dropped first; its bucket is full again by then."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._limits: OrderedDict[str, RateLimit] = OrderedDict()

    def of(self, name: str) -> RateLimit:
        """The rate limit of this name."""
        if name not in self._limits:
            self._limits[name] = RateLimit(self._per_minute, self._clock)
            if len(self._limits) > _NAMES:
                self._limits.popitem(last=False)
        self._limits.move_to_end(name)
        return self._limits[name]
