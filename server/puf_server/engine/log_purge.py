"""Keeps the database's write-ahead log short, and free of records that were deleted."""

from __future__ import annotations

import sqlite3
import threading

from puf_common.errors import PufError
from puf_common.logging import get_logger
from puf_server.engine.troubles import Trouble, Troubles
from puf_server.storage.state_store import Store

# A longer log is copied into the database. The limit bounds the space that the log takes.
_LONGEST_LOG = 1 << 18

log = get_logger(__name__)


class LogPurge:
    """Empties the log when that is due. Never under the engine's lock, and never waiting for another process."""

    def __init__(self, store: Store, troubles: Troubles) -> None:
        self._store = store
        self._troubles = troubles
        # At the start the log may hold deleted records of an earlier process.
        self._due = True
        self._running = threading.Lock()

    def want(self) -> None:
        """Deleted records must leave the log."""
        self._due = True

    def run(self) -> None:
        """Empties the log if that is due. While another process reads an older state, a later call tries again."""
        if not (self._due or self._store.log_bytes() > _LONGEST_LOG) or not self._running.acquire(blocking=False):
            return
        try:
            self._due = False
            try:
                done, why = self._store.purge_free_pages(), "another process reads an older state of the database"
            except (sqlite3.Error, PufError) as error:
                done, why = False, str(error)
            if done:
                if self._troubles.clear(Trouble.LOG):
                    log.info("the database's log is empty again")
                return
            self._due = True
            message = f"the database's log keeps deleted records and grows, trying again: {why}"
            if self._troubles.report(Trouble.LOG, message):
                log.warning("the database's log is not emptied yet; trying again", why=why)
        finally:
            self._running.release()
