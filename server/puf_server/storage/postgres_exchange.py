"""What the processes that serve one federation report to each other once a second.

No process reads the clock of another one. A count that grows is a sign of life, and each process measures by its own clock
how long there was none. Only the database's clock is common to all.
"""

from __future__ import annotations

import math

from puf_common.clock import steady_time
from puf_common.logging import get_logger
from puf_server.storage.postgres_tables import Connection
from puf_server.storage.state_database import OthersReport, OwnReport, Watcher

log = get_logger(__name__)

# A process that gave no sign of life for so long loses its connections.
SILENT_SECONDS = 10.0
# Time between two exchanges in which this process itself did nothing counts at most so much.
_MOST_STEP = 2.0

_ALIVE = """
    INSERT INTO puf_servers VALUES (%s, 1, %s, %s)
    ON CONFLICT (id) DO UPDATE SET beats = puf_servers.beats + 1, round = excluded.round, sent = excluded.sent
"""
_HEARD = """
    INSERT INTO puf_presence
    SELECT client, 1, activity, clock_timestamp() FROM unnest(%s::text[], %s::text[]) AS heard (client, activity)
    ORDER BY client
    ON CONFLICT (client) DO UPDATE
    SET beats = puf_presence.beats + 1, activity = excluded.activity, at = excluded.at
"""
_PRESENCE = "SELECT client, beats, activity, extract(epoch FROM clock_timestamp() - at)::float FROM puf_presence"
# The role may end sessions of its own.
_END_SESSIONS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = %s AND datname = current_database() AND usename = current_user
"""


class Exchange:
    """What one process knows about the others and their workers. Use in one thread, except `is_gone` and `wall`."""

    def __init__(self, own: str) -> None:
        self._own = own
        # Count of signs of life, by worker.
        self._heard: dict[str, int] | None = None
        # By process: the count of signs of life, and the seconds in which there was none.
        self._silent: dict[str, tuple[int, float]] = {}
        self._at = steady_time()
        self._offset = math.nan

    def wall(self) -> float:
        """The database's clock, as far as it was measured."""
        return steady_time() + self._offset

    def measure_clock(self, db: Connection) -> None:
        before = steady_time()
        row = db.execute("SELECT extract(epoch FROM clock_timestamp())::float").fetchone()
        assert row is not None
        self._offset = row[0] - (before + steady_time()) / 2

    def run(self, db: Connection, watcher: Watcher) -> None:
        """Reports to the others what this process heard, and reads their reports."""
        report, own = watcher.report(), []
        with db.transaction():
            db.execute(_ALIVE, (self._own, report.round, report.sent))
            if report.workers:
                activities = [activity.replace("\0", "") for activity in report.workers.values()]
                db.execute(_HEARD, (list(report.workers), activities))
        self.measure_clock(db)
        others, sent = [], 0
        for server, beats, number, nbytes, stop in db.execute("SELECT id, beats, round, sent, stop FROM puf_servers"):
            if server == self._own:
                own.append(stop)
                continue
            others.append((server, beats))
            sent += nbytes if number == report.round else 0
        self._learn_workers(db, watcher, report, sent)
        for gone in self._watch_servers(others):
            log.warning("another server is silent; its connections are ended", server=gone)
            db.execute(_END_SESSIONS, (f"puf-server {gone}",))
            db.execute("DELETE FROM puf_servers WHERE id = %s", (gone,))
            watcher.gone()
        if own == [True]:
            watcher.stop()

    def _learn_workers(self, db: Connection, watcher: Watcher, own: OwnReport, sent: int) -> None:
        heard, silent, activity = dict[str, int](), dict[str, float](), dict[str, str]()
        for client, beats, doing, seconds in db.execute(_PRESENCE):
            heard[client] = beats
            if self._heard is None:
                # The only time at which this process relies on times that others have written.
                silent[client] = max(0.0, seconds)
                activity[client] = doing
            elif self._heard.get(client) != beats and client not in own.workers:
                silent[client] = 0.0
                activity[client] = doing
        self._heard = heard
        no_members = [client for client in heard if client not in own.members]
        if no_members:
            db.execute("DELETE FROM puf_presence WHERE client = ANY(%s)", (no_members,))
        watcher.learn(OthersReport(silent, activity, sent))

    def _watch_servers(self, others: list[tuple[str, int]]) -> list[str]:
        """The processes that became silent."""
        now = steady_time()
        passed, self._at = min(now - self._at, _MOST_STEP), now
        found, gone = dict(others), []
        for server in {*found, *self._silent}:
            beats, seconds = self._silent.get(server, (-1, 0.0))
            alive = server in found and found[server] != beats
            self._silent[server] = (found.get(server, beats), 0.0 if alive else seconds + passed)
            if seconds < SILENT_SECONDS <= self._silent[server][1]:
                gone.append(server)
        return gone

    def is_gone(self, server: str) -> bool:
        """Whether a process is known to serve no longer. A process that is not known counts from now on."""
        return self._silent.setdefault(server, (-1, 0.0))[1] >= SILENT_SECONDS

    def leave(self, db: Connection) -> None:
        db.execute("DELETE FROM puf_servers WHERE id = %s", (self._own,))
