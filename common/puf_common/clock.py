"""A clock that no change of the wall clock affects."""

from __future__ import annotations

import time


def steady_time() -> float:
    """Seconds that no change of the wall clock affects. Time in which the machine slept counts where the system can tell."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)
