"""Rate limits: bursts of one minute's worth, a constant refill, one limit per name."""

from __future__ import annotations

import pytest

from puf_server.admission import rate_limit
from puf_server.admission.rate_limit import RateLimit, RateLimits


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_minutes_worth_is_allowed_at_once_and_then_one_per_interval() -> None:
    clock = Clock()
    limit = RateLimit(6, clock)
    assert [limit.take() for _ in range(7)] == [True] * 6 + [False]
    assert limit.retry_seconds == pytest.approx(10.0)
    clock.now = 9.9
    assert not limit.take()
    assert limit.retry_seconds == pytest.approx(0.1)
    clock.now = 10.0
    assert limit.take()
    assert not limit.take()


def test_a_long_pause_saves_no_more_than_one_minute() -> None:
    clock = Clock()
    limit = RateLimit(3, clock)
    clock.now = 1e6
    assert [limit.take() for _ in range(4)] == [True, True, True, False]


def test_less_than_one_per_minute_still_allows_the_first() -> None:
    clock = Clock()
    limit = RateLimit(0.5, clock)
    assert limit.take()
    assert not limit.take()
    assert limit.retry_seconds == pytest.approx(120.0)


def test_names_do_not_share_a_limit() -> None:
    limits = RateLimits(1, Clock())
    assert limits.of("anna").take()
    assert not limits.of("anna").take()
    assert limits.of("bert").take()


def test_the_least_recently_used_name_is_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_NAMES", 2)
    limits = RateLimits(1, Clock())
    for name in ("anna", "bert"):
        assert limits.of(name).take()
    assert not limits.of("anna").take()
    # bert was used before anna, so cleo replaces bert.
    assert limits.of("cleo").take()
    assert not limits.of("anna").take()
    assert limits.of("bert").take()
