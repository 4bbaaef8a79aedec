"""Moments as people and programs both read them: Unix seconds to UTC and back. No clock is looked at."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["from_utc", "to_utc"]


def to_utc(at: float) -> str:
    """2026-11-16T19:32:20Z: to the second, always UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_utc(text: str) -> float:
    """Unix seconds of what `to_utc` wrote; ValueError for anything without a time zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return moment.timestamp()
