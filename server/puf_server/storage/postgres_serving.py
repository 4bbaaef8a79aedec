"""The right to serve a federation in PostgreSQL: one process has it, and a silent process loses it.

The process holds an advisory lock on the connection that makes its changes. A process that loses the connection cannot
commit. It takes the lock again, or ends if another process has it. A thread states every few seconds that the process
is alive. Where it is silent for longer, for example because it is stopped or its machine is gone, another process ends
its connection and takes the lock.
"""

from __future__ import annotations

import secrets
import threading

from puf_common.errors import PufError
from puf_common.logging import get_logger
from puf_server.storage.durable import exit_now
from puf_server.storage.postgres_connection import Address, translated
from puf_server.storage.postgres_tables import Connection
from puf_server.storage.state_database import AlreadyServed

log = get_logger(__name__)

ALIVE_SECONDS = 2.0
SILENT_SECONDS = 20.0
# The lock has two numbers: "puf", and the number of the schema.
_TRY = "SELECT pg_try_advisory_lock(7370086, (SELECT oid::integer FROM pg_namespace WHERE nspname = current_schema()))"
_END_HOLDER = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND classid = 7370086
    AND objid = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class Serving:
    """One process's right to serve."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._name = secrets.token_hex(8)
        self._held = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._stay_alive, name="puf-alive", daemon=True)

    def lock(self, db: Connection) -> None:
        """Takes the lock on this connection. Raises AlreadyServed, or ends a process that had the lock before."""
        with translated(self._address.shown), db.transaction():
            if self._take(db):
                self._held = True
                return
        error = AlreadyServed(
            f"another server serves the federation in the database {self._address.shown}; stop it first"
        )
        if self._held:
            exit_now("another server has taken the place of this one: the process ends", why=error.message)
        raise error

    def _take(self, db: Connection) -> bool:
        """Whether this connection has the lock now. The caller opens the transaction."""
        if db.execute("SELECT to_regclass('puf_serving')").fetchone() == (None,):
            # There is no federation; the caller that reads its tables says so.
            return True
        query = "SELECT holder, extract(epoch FROM clock_timestamp() - alive)::float FROM puf_serving FOR UPDATE"
        row = db.execute(query).fetchone()
        assert row is not None
        holder, silent = str(row[0]), float(row[1])
        free = db.execute(_TRY).fetchone() == (True,)
        # An earlier connection of this process that was lost may last for minutes.
        if not free and (holder == self._name or silent >= SILENT_SECONDS):
            if holder != self._name:
                log.warning("the server that served is silent; this one takes its place", seconds=round(silent))
            db.execute(_END_HOLDER)
            free = db.execute(_TRY).fetchone() == (True,)
        if free:
            db.execute("UPDATE puf_serving SET holder = %s, alive = clock_timestamp()", (self._name,))
        return free

    def begin(self) -> None:
        """Begins to state that this process is alive."""
        self._thread.start()

    def _stay_alive(self) -> None:
        db: Connection | None = None
        silent = False
        while not self._ended.wait(ALIVE_SECONDS):
            try:
                with translated(self._address.shown):
                    if db is None or db.closed:
                        db = self._address.connect()
                    # A process that lost the right changes nothing.
                    db.execute("UPDATE puf_serving SET alive = clock_timestamp() WHERE holder = %s", (self._name,))
                silent = False
            except PufError as error:
                # One line for each outage.
                if not silent:
                    log.warning("the database does not answer", why=error.message)
                silent = True
                if db is not None:
                    db.close()
        if db is not None:
            db.close()

    def end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
