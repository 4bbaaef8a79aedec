"""The audit log as pages and as a stream. Entries are read from the database, in short transactions on file threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from puf_common.audit_chain import AuditEntry
from puf_common.errors import Unavailable
from puf_common.v1 import operator_pb2 as op
from puf_server.rpc.calls import Threads
from puf_server.storage.state_database import StateDatabase

_BATCH = 500
_MOST = 1000
_USUAL = 100
# The largest integer of the databases.
_MOST_NUMBER = 2**63 - 1
# Commands such as `puf-server backup` write entries from another process.
_POLL_SECONDS = 1.0
# A stream reads at most this often, however often the state changes.
_PAUSE_SECONDS = 0.05


class AuditFeed:
    """`wake` and the streams run on the event loop."""

    def __init__(self, database: StateDatabase, threads: Threads) -> None:
        self._database = database
        self._threads = threads
        self._changed = asyncio.Event()
        self._ended = False

    def wake(self) -> None:
        """To be called after every change of the state: there may be new entries."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """Ends all streams: the server stops."""
        self._ended = True
        self.wake()

    async def page(self, request: op.ListAuditRequest) -> list[AuditEntry]:
        """The entries that the request selects, newest first."""
        before, number = min(request.before, _MOST_NUMBER), min(request.round, _MOST_NUMBER)
        limit = min(request.limit or _USUAL, _MOST)

        def read() -> list[AuditEntry]:
            with self._database.audit_log() as log:
                return log.page(before=before, limit=limit, event=request.event, text=request.text, number=number)

        return await self._threads.run_on_files(read)

    async def after(self, number: int) -> AsyncIterator[list[AuditEntry]]:
        """Every entry after this number once and in order, in batches, also those that are written later."""
        number = min(number, _MOST_NUMBER)

        def read() -> list[AuditEntry]:
            with self._database.audit_log() as log:
                return log.after(number, _BATCH)

        while not self._ended:
            # Taken before reading: an entry that is written meanwhile sets it.
            changed = self._changed
            if entries := await self._threads.run_on_files(read):
                number = entries[-1].number
                yield entries
            if len(entries) == _BATCH:
                continue
            await asyncio.sleep(_PAUSE_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _POLL_SECONDS)
        raise Unavailable("the server stops")
