"""The audit log as events: followed once, verified as a hash chain, and passed on to every open page.

The number of an audit entry is the id of its event. A page that was disconnected names the last id that it got and
receives every entry after it exactly once.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from puf_common import audit_chain
from puf_common.audit_chain import EMPTY, Head
from puf_common.errors import PufError, StorageCorrupted
from puf_common.logging import get_logger
from puf_common.v1 import operator_pb2 as op
from puf_server.dashboard.upstream import Upstream

# Entries that a page may have missed. A page that missed more is loaded again.
KEPT = 10_000
_RETRY_SECONDS = 0.5
_PING_SECONDS = 15.0
# Entries in one write to a browser.
_BATCH = 200
_DIGEST = re.compile(r"\b[0-9a-f]{40,}\b")

log = get_logger(__name__)


@dataclass(frozen=True)
class Chain:
    """How far the log was verified. `broken` says what is wrong with it; empty: nothing."""

    head: Head
    broken: str


class Events:
    """Follows the audit log of one server. Everything runs on one event loop."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._entries: list[op.AuditEntry] = []
        self._head = EMPTY
        self._broken = ""
        # Grows when the server shows another log than before.
        self._log_number = 0
        # The newest entry when the connection was made. Until it has arrived, entries are old ones.
        self._newest = 0
        self._changed = asyncio.Event()
        # When each model version was exported.
        self.exports: dict[int, list[float]] = {}
        # Why there is no connection; empty while there is one.
        self.problem = "the dashboard has not reached the server yet"

    @property
    def newest(self) -> int:
        """The number of the newest entry that is known to exist."""
        return max(self._newest, self._head.number)

    @property
    def chain(self) -> Chain:
        return Chain(self._head, self._broken)

    async def run(self) -> None:
        """Follows the log for ever; connects again after every failure."""
        while True:
            try:
                await self._upstream.reconnect()
                await self._begin()
                async for entries in self._upstream.follow(self._head.number):
                    self._add(entries)
            except PufError as error:
                if self.problem != error.message:
                    log.warning("no connection to the server; trying again", why=error.message)
                self.problem = error.message
            self._wake()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _begin(self) -> None:
        """Checks that the server still has the last entry that was seen here. Another log is read from its start."""
        newest = await self._upstream.call("ListAudit", op.ListAuditRequest(limit=1))
        self._newest = newest.entries[0].number if newest.entries else 0
        if self._head != EMPTY:
            request = op.ListAuditRequest(before=self._head.number + 1, limit=1)
            known = (await self._upstream.call("ListAudit", request)).entries
            if not known or Head(known[0].number, known[0].hash) != self._head:
                broken = (
                    f"entry {self._head.number} is not the one that was seen here before: the log was written again"
                )
                log.error("the audit log was replaced", entry=self._head.number)
                self._entries, self._head, self._broken, self.exports = [], EMPTY, broken, {}
                self._log_number += 1
        if self.problem:
            log.info("connected to the server", entries=self._newest)
        self.problem = ""
        self._wake()

    def _add(self, entries: Sequence[op.AuditEntry]) -> None:
        lines = [audit_chain.AuditEntry(e.number, e.at, e.event, e.facts, e.hash) for e in entries]
        try:
            audit_chain.follow(lines, after=self._head)
        except StorageCorrupted as error:
            self._broken = self._broken or error.message
        self._head = Head(lines[-1].number, lines[-1].hash)
        for entry in entries:
            if entry.event == "model.exported":
                self.exports.setdefault(facts_of(entry).get("version", -1), []).append(entry.at)
        self._entries += entries
        if len(self._entries) > 2 * KEPT:
            del self._entries[:-KEPT]
        self._wake()

    def _wake(self) -> None:
        self._upstream.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def stream(self, after: int) -> AsyncIterator[str]:
        """Server-sent events for one page, from the entry after this number on. It ends only with the connection."""
        yield "retry: 1000\n\n"
        problem: str | None = None
        log_number = self._log_number
        while True:
            changed = self._changed
            if problem != self.problem:
                problem = self.problem
                yield _message("link", {"problem": problem})
            oldest = self._entries[0].number if self._entries else self._head.number + 1
            if after < oldest - 1 or (after > self.newest and not problem) or log_number != self._log_number:
                # More was missed than is kept, or the log is another one.
                after, log_number = self.newest, self._log_number
                yield f"id: {after}\n" + _message("reset", {})
            batch = self._entries[max(0, after + 1 - oldest) :][:_BATCH] if after <= self._head.number else []
            if batch:
                yield "".join(f"id: {entry.number}\n" + _message("audit", shown(entry)) for entry in batch)
                after = batch[-1].number
                continue
            try:
                await asyncio.wait_for(changed.wait(), _PING_SECONDS)
            except TimeoutError:
                yield ": still here\n\n"


def shown(entry: op.AuditEntry) -> dict[str, Any]:
    """An entry as the list of events shows it: with short digests."""
    text = _DIGEST.sub(lambda found: f"{found[0][:12]}…", described(entry))
    return {"number": entry.number, "at": entry.at, "event": entry.event, "text": text}


def described(entry: op.AuditEntry) -> str:
    """The facts of an entry in one line."""
    return ", ".join(f"{key} {_plain(value)}" for key, value in facts_of(entry).items() if value not in (None, "", []))


def facts_of(entry: op.AuditEntry) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(entry.facts)
        if isinstance(found, dict):
            return found
    return {}


def _plain(value: object) -> str:
    if isinstance(value, list):
        names = ", ".join(map(str, value[:5]))
        return f"{names} and {len(value) - 5} more" if len(value) > 5 else names
    return f"{value:g}" if isinstance(value, float) else str(value)


def _message(event: str, data: dict[str, Any]) -> str:
    # JSON escapes line ends, so that a text cannot begin another event.
    return f"event: {event}\ndata: {json.dumps(data)}\n\n"
