"""Records as text in a row, and back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from puf_common.errors import PufError, StorageCorrupted
from puf_server.core.state.rounds import HistoryRecord
from puf_server.storage import rows

ADAPTER = rows.adapter(HistoryRecord)
RECORD = HistoryRecord(
    key="norms/1/a", kind="norms", client="a", membership=1, round=1, samples=10, norms=(1.5, 2.0), digest=""
)


def test_a_record_is_read_as_it_was_written() -> None:
    assert rows.read(ADAPTER, rows.text(ADAPTER, "h", RECORD), "h", Path("db")) == RECORD
    assert rows.read(ADAPTER, rows.text(ADAPTER, "h", None), "h", Path("db")) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_with_a_number_that_is_not_finite_is_not_written(value: float) -> None:
    record = HistoryRecord(
        key="k", kind="norms", client="a", membership=1, round=1, samples=1, norms=(value,), digest=""
    )
    with pytest.raises(PufError, match="h"):
        rows.text(ADAPTER, "h", record)


def test_a_text_that_only_looks_like_such_a_number_is_written() -> None:
    record = HistoryRecord(key="NaN", kind="Infinity", client="a", membership=1, round=1, samples=1)
    assert rows.read(ADAPTER, rows.text(ADAPTER, "h", record), "h", Path("db")) == record


@pytest.mark.parametrize("text", ["", "{", '{"key": 1}', "[]"])
def test_a_damaged_row_is_named_with_its_database(text: str) -> None:
    with pytest.raises(StorageCorrupted, match=r"state\.db.*h/1") as caught:
        rows.read(ADAPTER, text, "h/1", Path("state.db"))
    assert caught.value.facts["record"] == "h/1"
