"""Numbers, times and names as people read them. Times are in UTC, as on receipts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

_UNITS = (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0))


def time(at: float) -> str:
    """Date and time to the second; a dash for 0."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S") if at else "–"


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    """A length of time in its largest unit, with the next one below if the number is small."""
    seconds = abs(seconds)
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for at, (unit, length) in enumerate(_UNITS):
        if seconds >= length:
            whole = int(seconds // length)
            rest = int((seconds - whole * length) // _UNITS[at + 1][1]) if at < 3 else 0
            short = {"day": "d", "hour": "h", "minute": "min", "second": "s"}
            more = f" {rest} {short[_UNITS[at + 1][0]]}" if rest and whole < 10 else ""
            return f"{whole} {short[unit]}{more}"
    return f"{seconds:.0f} s"


def size(count: float) -> str:
    """Bytes in decimal units."""
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count:.0f} B"


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def number(value: float) -> str:
    """A count with separators, or a measured number with few digits."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def names(found: Sequence[str], most: int = 3) -> str:
    """Some names and how many more there are."""
    shown = ", ".join(found[:most])
    return f"{shown} and {len(found) - most} more" if len(found) > most else shown


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


FILTERS = {
    "time": time, "iso": iso, "duration": duration, "size": size, "percent": percent, "number": number, "names": names,
    "counted": counted,
}  # fmt: skip
