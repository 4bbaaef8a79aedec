"""The audit log as pages and as a stream. Entries are read from the database, in short transactions on file threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from puf_common.audit_chain import AuditEntry
from puf_common.errors import Unavailable
from puf_server.rpc.calls import Threads
from puf_server.storage.database import audit_after, audit_page, reading

_BATCH = 500
_MOST = 1000
_USUAL = 100
# Commands such as `puf-server backup` write entries from another process.
_POLL_SECONDS = 1.0
# A stream reads at most this often, however often the state changes.
_PAUSE_SECONDS = 0.05


class AuditFeed:
    """`wake` and the streams run on the event loop."""

    def __init__(self, database: Path, threads: Threads) -> None:
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

    async def page(self, before: int, limit: int, event: str, text: str) -> list[AuditEntry]:
        """Entries below `before`, newest first."""

        def read() -> list[AuditEntry]:
            with reading(self._database) as db:
                return audit_page(db, before=before, limit=min(limit or _USUAL, _MOST), event=event, text=text)

        return await self._threads.run_on_files(read)

    async def after(self, number: int) -> AsyncIterator[list[AuditEntry]]:
        """Every entry after this number once and in order, in batches, also those that are written later."""

        def read() -> list[AuditEntry]:
            with reading(self._database) as db:
                return audit_after(db, number, _BATCH)

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
