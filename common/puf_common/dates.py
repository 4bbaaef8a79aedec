"""Unix seconds as UTC text, and back. This module reads no clock."""

from __future__ import annotations

from datetime import UTC, datetime


def to_utc(at: float) -> str:
    """The time as 2026-11-16T19:32:20Z: whole seconds, always UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_utc(text: str) -> float:
    """Unix seconds of a text that `to_utc` wrote. Raises ValueError for a text without a time zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return moment.timestamp()
