"""Times as text, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.dates import from_utc, to_utc


def test_a_time_is_written_in_utc_in_every_time_zone() -> None:
    assert to_utc(0.0) == "1970-01-01T00:00:00Z"
    assert to_utc(1_794_857_540.9) == "2026-11-16T19:32:20Z"


@given(st.integers(0, 4_000_000_000))
def test_whole_seconds_come_back(at: int) -> None:
    assert from_utc(to_utc(at)) == at


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-16T18:12:20"])
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_utc(text)
