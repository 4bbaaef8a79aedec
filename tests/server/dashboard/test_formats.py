"""Numbers, times and names as people read them."""

from __future__ import annotations

import pytest

from puf_server.dashboard import formats


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12 ms"), (1.26, "1.3 s"), (59, "59 s"), (61, "1 min 1 s"), (600, "10 min"), (3660, "1 h 1 min"),
        (86400, "1 d"), (90000, "1 d 1 h"), (30 * 86400, "30 d"), (-120, "2 min"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e6, "2.0 MB"), (3.2e9, "3.2 GB")]
)
def test_sizes(count: float, text: str) -> None:
    assert formats.size(count) == text


def test_times_are_in_utc_and_zero_is_a_dash() -> None:
    assert formats.time(1_800_000_000) == "2027-01-15 08:00:00"
    assert formats.iso(1_800_000_000) == "2027-01-15T08:00:00Z"
    assert formats.time(0) == "–"


def test_numbers_names_and_counts() -> None:
    assert [formats.number(n) for n in (12345, 0.123456, float("nan"))] == ["12,345", "0.1235", "–"]
    assert formats.names(["a", "b"]) == "a, b"
    assert formats.names(list("abcde")) == "a, b, c and 2 more"
    assert [formats.counted(n, "round") for n in (1, 2000)] == ["1 round", "2,000 rounds"]
    assert formats.percent(0.5) == "50 %"
