"""The audit log as events: verified, kept, and replayed exactly once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common import audit_chain
from puf_common.audit_chain import EMPTY, Head
from puf_common.v1 import operator_pb2 as op
from puf_server.dashboard import events as module
from puf_server.dashboard.events import Events, described, shown
from puf_server.dashboard.upstream import Upstream


def entries(count: int, word: str = "a") -> list[op.AuditEntry]:
    head, found = EMPTY, []
    for i in range(count):
        e = audit_chain.append(head, 1e9 + i, "test.entry", {word: i})
        head = Head(e.number, e.hash)
        found.append(op.AuditEntry(number=e.number, at=e.at, event=e.event, facts=e.facts, hash=e.hash))
    return found


def following(added: Sequence[Sequence[op.AuditEntry]]) -> Events:
    events = Events(Upstream(lambda: ("127.0.0.1:1", None)))
    events.problem = ""
    for batch in added:
        events._add(batch)
    return events


async def taken(stream: AsyncIterator[str], ids: int) -> list[str]:
    """The lines of the stream until it has so many ids."""
    lines: list[str] = []
    async for text in stream:
        lines += text.splitlines()
        if sum(line.startswith("id: ") for line in lines) >= ids:
            break
    return lines


def numbers(lines: list[str]) -> list[int]:
    return [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")]


@given(cuts=st.lists(st.integers(1, 30), min_size=1, max_size=8), after=st.integers(0, 30))
def test_every_entry_after_an_id_arrives_once_and_in_order(cuts: list[int], after: int) -> None:
    log = entries(sum(cuts))
    batches = [log[sum(cuts[:i]) : sum(cuts[: i + 1])] for i in range(len(cuts))]

    async def read() -> list[int]:
        events = following(batches[:1])
        events._newest = len(log)
        start = min(after, len(log) - 1)
        stream = events.stream(start)
        reader = asyncio.create_task(taken(stream, len(log) - start))
        for batch in batches[1:]:
            await asyncio.sleep(0)
            events._add(batch)
        return numbers(await reader)

    assert asyncio.run(read()) == list(range(min(after, len(log) - 1) + 1, len(log) + 1))


def test_a_whole_chain_is_verified_and_a_change_is_found() -> None:
    log = entries(6)
    assert following([log[:3], log[3:]]).chain == module.Chain(Head(6, log[-1].hash), "")
    log[3].facts = '{"a":7}'
    assert "audit line 4" in following([log[:3], log[3:]]).chain.broken
    # What is wrong stays visible, also when the entries after it fit together.
    assert "audit line 4" in following([log[:3], log[3:4], log[4:]]).chain.broken
    assert "is missing" in following([log[:2], log[3:]]).chain.broken


def test_a_page_that_missed_too_much_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 10)
    log = entries(40)

    async def read(after: int, ids: int) -> list[str]:
        return await taken(following([log[:15], log[15:30], log[30:]]).stream(after), ids)

    lines = asyncio.run(read(5, 1))
    assert lines[-3:-1] == ["event: reset", "data: {}"]
    assert numbers(lines) == [40]
    assert numbers(asyncio.run(read(35, 5))) == [36, 37, 38, 39, 40]


def test_a_text_cannot_begin_another_event() -> None:
    entry = entries(1)[0]
    entry.facts = json.dumps({"why": "x\n\nevent: reset\ndata: {}\r\n\u2028", "empty": None})

    async def read() -> str:
        events = following([])
        events._entries, events._head = [entry], Head(1, b"")
        return "\n".join(await taken(events.stream(0), 1))

    text = asyncio.run(read())
    assert text.count("event: ") == 3  # link, audit, and the one inside the text
    assert "\nevent: reset" not in text


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"client": "anna", "samples": 10}, "client anna, samples 10"),
        ({"clients": [f"c{i}" for i in range(7)]}, "clients c0, c1, c2, c3, c4 and 2 more"),
        ({"kappa": 2.0, "eta_u": None, "reference": ""}, "kappa 2"),
    ],
)
def test_facts_are_described_in_one_line(facts: dict[str, Any], text: str) -> None:
    assert described(op.AuditEntry(facts=json.dumps(facts))) == text


def test_digests_are_short_in_the_list_of_events() -> None:
    entry = op.AuditEntry(facts=json.dumps({"digest": "0123456789abcdef" * 4}))
    assert shown(entry)["text"] == "digest 0123456789ab…"
    assert described(op.AuditEntry(facts="[1]")) == described(op.AuditEntry(facts="{")) == ""
