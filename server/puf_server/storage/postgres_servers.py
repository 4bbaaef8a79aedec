"""The processes that serve one federation in PostgreSQL, as each of them sees the others.

All processes are equal. Each has one connection beside that for changes, in a thread of its own. There it hears at once
that another process has committed. Once a second it reports to the others which workers it has heard, and that it is alive.

A shared advisory lock counts the processes. The first one has it alone until its state is recovered. A process that is
silent for longer, for example because it is stopped, loses its connections, and with them every lock.
"""

from __future__ import annotations

import random
import secrets
import select
import socket
import threading
import time
from contextlib import suppress

from puf_common.clock import steady_time
from puf_common.errors import PufError
from puf_common.logging import get_logger
from puf_server.storage.postgres_connection import Address, translated
from puf_server.storage.postgres_exchange import Exchange
from puf_server.storage.postgres_tables import LOCK, STEPS, Connection, version
from puf_server.storage.state_database import AlreadyServed, DatabaseBusy, Watcher

log = get_logger(__name__)

EXCHANGE_SECONDS = 1.0
_WAIT_SECONDS = 0.2


class Servers:
    """This process among the servers of a federation."""

    def __init__(self, address: str) -> None:
        self.id = secrets.token_hex(4)
        self.address = Address(address, f"puf-server {self.id}")
        # No other process served when this one came.
        self.alone = False
        self._shares = False
        self.exchange = Exchange(self.id)
        self._db: Connection | None = None
        self._watcher: Watcher | None = None
        self._woken, self._wake = socket.socketpair()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="puf-servers", daemon=True)

    def join(self) -> None:
        """Waits while another process recovers the state. Raises AlreadyServed where an older PUF serves it."""
        db = self.address.connect()
        self._db = db
        waiting = False
        with translated(self.address.shown):
            while not _take(db, "") and not self._joined(db):
                found = version(db)
                if found is not None and found < len(STEPS):
                    raise AlreadyServed(
                        f"a server of an older PUF serves the federation in the database {self.address.shown}; stop it first"
                    )
                if not waiting:
                    log.info("another server recovers the state; this one waits")
                waiting = True
                time.sleep(_WAIT_SECONDS * (1 + random.random()))  # noqa: S311
            self.alone = not self._shares

    def _joined(self, db: Connection) -> bool:
        """Whether this process joins others that have recovered the state. It then has its part of the lock."""
        if not _take(db, "_shared"):
            return False
        self._shares = db.execute("SELECT 1 FROM puf_servers LIMIT 1").fetchone() is not None
        if not self._shares:
            # A process that had the lock alone has ended before the state was recovered.
            db.execute(f"SELECT pg_advisory_unlock_shared({LOCK})")
        return self._shares

    def measure_clock(self) -> None:
        assert self._db is not None
        with translated(self.address.shown):
            self.exchange.measure_clock(self._db)

    def watch(self, watcher: Watcher) -> None:
        """Begins to exchange with the others. From now on this process is not alone."""
        assert self._db is not None
        self._watcher = watcher
        with translated(self.address.shown):
            self._begin(self._db)
            if self.alone:
                # What was known about processes and workers before.
                self._db.execute("DELETE FROM puf_servers; DELETE FROM puf_presence")
            self.exchange.run(self._db, watcher)
            if self.alone:
                self._db.execute(f"SELECT pg_advisory_unlock({LOCK})")
        self._thread.start()

    def _begin(self, db: Connection) -> None:
        """Takes this process's part of the lock, and listens."""
        while not _take(db, "_shared"):
            if self._ended.wait(_WAIT_SECONDS):
                raise DatabaseBusy("the server stops")
        db.execute(f'LISTEN "{channel(db)}"')

    def _connected(self) -> Connection:
        if self._db is None or self._db.closed:
            self._db = self.address.connect()
            self._begin(self._db)
            self._changed()
        return self._db

    def _changed(self) -> None:
        assert self._watcher is not None
        try:
            self._watcher.changed()
        except PufError as error:
            # The next call reads the state again.
            log.info("the newest state was not read", why=error.message)

    def _run(self) -> None:
        assert self._watcher is not None
        silent = False
        while not self._ended.is_set():
            try:
                with translated(self.address.shown):
                    db = self._connected()
                    self.exchange.run(db, self._watcher)
                    # During the exchange this thread did not listen.
                    self._changed()
                    self._listen(db, steady_time() + EXCHANGE_SECONDS)
                silent = False
            except PufError as error:
                if not silent and not self._ended.is_set():
                    # One line for each outage.
                    log.warning("the servers do not hear each other", why=error.message)
                silent = True
                if self._db is not None:
                    self._db.close()
                self._ended.wait(_WAIT_SECONDS)
            except Exception as error:
                log.error("the exchange with the other servers failed; trying again", exc_info=error)
                self._ended.wait(EXCHANGE_SECONDS)

    def _listen(self, db: Connection, until: float) -> None:
        """Hears of commits until this time, or until the process ends."""
        while not self._ended.is_set() and (left := until - steady_time()) > 0:
            select.select([db.fileno(), self._woken.fileno()], [], [], left)
            senders = {notice.payload for notice in db.notifies(timeout=0)}
            if senders - {self.id}:
                self._changed()

    def end(self) -> None:
        self._ended.set()
        self._wake.send(b"x")
        if self._thread.is_alive():
            self._thread.join()
            with suppress(PufError), translated(self.address.shown):
                if self._db is not None and not self._db.closed:
                    self.exchange.leave(self._db)
        if self._db is not None:
            self._db.close()
        self._woken.close()
        self._wake.close()


def channel(db: Connection) -> str:
    """The name under which processes hear of commits."""
    row = db.execute("SELECT 'puf_' || oid FROM pg_namespace WHERE nspname = current_schema()").fetchone()
    assert row is not None
    return str(row[0])


def _take(db: Connection, shared: str) -> bool:
    return db.execute(f"SELECT pg_try_advisory_lock{shared}({LOCK})").fetchone() == (True,)
