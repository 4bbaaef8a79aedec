"""The audit log of a federation in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from puf_common.audit_chain import EMPTY, AuditEntry, Head
from puf_server.storage.postgres_tables import Connection

_ENTRIES = "SELECT seq, at, event, facts, hash FROM puf_audit"
_BATCH = 1000


class PostgresAuditLog:
    """The audit log as one transaction sees it."""

    def __init__(self, db: Connection) -> None:
        self._db = db

    def meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT body FROM puf_rows WHERE kind = 'meta' AND id = %s", (key,)).fetchone()
        return None if row is None else str(row[0])

    def head(self) -> Head:
        row = self._db.execute("SELECT seq, hash FROM puf_audit ORDER BY seq DESC LIMIT 1").fetchone()
        return Head(row[0], row[1]) if row else EMPTY

    def lines(self, *events: str) -> Iterator[AuditEntry]:
        last = 0
        while True:
            query = f"{_ENTRIES} WHERE seq > %s AND (%s OR event = ANY(%s)) ORDER BY seq LIMIT %s"
            found = self._db.execute(query, (last, not events, list(events), _BATCH)).fetchall()
            for row in found:
                yield AuditEntry(*row)
            if len(found) < _BATCH:
                return
            last = found[-1][0]

    def after(self, number: int, limit: int) -> list[AuditEntry]:
        found = self._db.execute(f"{_ENTRIES} WHERE seq > %s ORDER BY seq LIMIT %s", (number, limit))
        return [AuditEntry(*row) for row in found]

    def page(self, *, before: int, limit: int, event: str = "", text: str = "", number: int = 0) -> list[AuditEntry]:
        like = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        # PostgreSQL refuses a text with this character; no entry contains it.
        if "\0" in event or "\0" in text:
            return []
        found = self._db.execute(
            f"{_ENTRIES} WHERE (%s = 0 OR seq < %s) AND starts_with(event, %s) AND facts ILIKE %s "
            "AND (%s = 0 OR facts::json ->> 'round' = %s) ORDER BY seq DESC LIMIT %s",
            (before, before, event, f"%{like}%", number, str(number), limit),
        )
        return [AuditEntry(*row) for row in found]


def append(db: Connection, entries: Sequence[AuditEntry]) -> None:
    """Writes entries that are chained to the last one."""
    rows = [(e.number, e.at, e.event, e.facts, e.hash) for e in entries]
    db.cursor().executemany("INSERT INTO puf_audit VALUES (%s, %s, %s, %s, %s)", rows)
