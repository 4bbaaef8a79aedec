"""The hash chain of the audit log reveals every change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.audit_chain import EMPTY, AuditEntry, Head, append, follow
from puf_common.errors import StorageCorrupted


def log(length: int, word: str = "a") -> list[AuditEntry]:
    lines: list[AuditEntry] = []
    head = EMPTY
    for i in range(length):
        lines.append(append(head, 1000.0 + i, f"event.{i}", {word: i}))
        head = Head(lines[-1].number, lines[-1].hash)
    return lines


def test_a_whole_log_leads_to_its_head() -> None:
    lines = log(5)
    assert follow(lines) == Head(5, lines[-1].hash)
    assert follow([]) == EMPTY


@given(st.integers(0, 7), st.sampled_from(["number", "at", "event", "facts", "hash"]))
def test_a_changed_line_is_found(place: int, name: str) -> None:
    lines = log(8)
    old = lines[place]
    new: dict[str, Any] = {"number": old.number + 1, "at": old.at + 1, "event": "x", "facts": "{}", "hash": b"\0" * 32}
    lines[place] = replace(old, **{name: new[name]})
    with pytest.raises(StorageCorrupted):
        follow(lines)


@given(st.integers(0, 6))
def test_a_missing_line_is_found(place: int) -> None:
    lines = log(8)
    del lines[place]
    with pytest.raises(StorageCorrupted, match=f"line {place + 1} is missing"):
        follow(lines)
    # Renumbering the rest does not hide it.
    with pytest.raises(StorageCorrupted):
        follow([replace(line, number=i + 1) for i, line in enumerate(lines)])


@given(st.permutations(range(5)).filter(lambda order: order != sorted(order)))
def test_another_order_is_found(order: list[int]) -> None:
    lines = log(5)
    moved = [replace(lines[i], number=place + 1) for place, i in enumerate(order)]
    with pytest.raises(StorageCorrupted):
        follow(moved)


def test_an_earlier_head_reveals_a_log_that_was_cut_off() -> None:
    lines = log(5)
    witness = Head(4, lines[3].hash)
    assert follow(lines, witness).number == 5
    assert follow(lines[:4], witness).number == 4
    assert follow(lines[:3]).number == 3
    with pytest.raises(StorageCorrupted, match="cut off: it ends with line 3, the receipt names line 4"):
        follow(lines[:3], witness)


def test_an_earlier_head_reveals_a_log_that_was_written_again() -> None:
    witness = Head(4, log(5)[3].hash)
    rewritten = log(5, word="b")
    assert follow(rewritten).number == 5
    with pytest.raises(StorageCorrupted, match="written again"):
        follow(rewritten, witness)
