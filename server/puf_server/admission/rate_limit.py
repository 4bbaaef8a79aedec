"""How often something may happen: so many times a minute, and all of a minute's worth at once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Bucket", "Meters"]

_NAMES = 20_000


class Bucket:
    """Holds one minute's worth and fills steadily."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = max(1.0, per_minute)
        self._rate = per_minute / 60.0
        self._clock = clock
        self._left = self._most
        self._at = clock()

    def take(self) -> bool:
        """Whether it may happen once more now."""
        now = self._clock()
        self._left = min(self._most, self._left + self._rate * (now - self._at))
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    @property
    def seconds(self) -> float:
        """How long until it may happen again."""
        return max(0.0, 1.0 - self._left) / self._rate


class Meters:
    """A bucket per name. Those not heard of for longest are dropped: by then they are full again."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def of(self, name: str) -> Bucket:
        if name not in self._buckets:
            self._buckets[name] = Bucket(self._per_minute, self._clock)
            if len(self._buckets) > _NAMES:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        return self._buckets[name]
