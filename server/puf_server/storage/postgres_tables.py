"""The tables of a federation in PostgreSQL, and their versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from puf_common.errors import Mismatch, UsageError

Connection = psycopg.Connection[tuple[Any, ...]]

# The lock of all servers of a federation, and that of the one that folds: "puf", and the number of the schema.
_SCHEMA = "(SELECT oid::integer FROM pg_namespace WHERE nspname = current_schema())"
LOCK = f"7370086, {_SCHEMA}"
FOLD_LOCK = f"7370087, {_SCHEMA}"

# One step for each version of the tables. A step is never changed after a release.
STEPS = (
    """
    CREATE TABLE puf_head (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        tables integer NOT NULL,
        -- Counts the commits. Each commit names the version that it has read.
        version bigint NOT NULL,
        -- The last version that deleted a row.
        shrunk bigint NOT NULL,
        -- Tells the last commit from all others.
        writer text NOT NULL
    );
    CREATE TABLE puf_rows (
        kind text COLLATE "C" NOT NULL,
        id text COLLATE "C" NOT NULL,
        body text NOT NULL,
        crc bigint NOT NULL,
        version bigint NOT NULL,
        PRIMARY KEY (kind, id)
    );
    CREATE INDEX puf_rows_version ON puf_rows (version);
    CREATE TABLE puf_audit (
        seq bigint PRIMARY KEY,
        at double precision NOT NULL,
        event text NOT NULL,
        facts text NOT NULL,
        hash bytea NOT NULL
    );
    -- The process that serves, and when it was alive last.
    CREATE TABLE puf_serving (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        holder text NOT NULL,
        alive timestamptz NOT NULL
    );
    INSERT INTO puf_head VALUES (true, 0, 0, 0, '');
    INSERT INTO puf_serving VALUES (true, '', 'epoch');
    """,
    """
    DROP TABLE puf_serving;
    -- Counts how often a process got the right to fold. The commit of a fold names its number.
    ALTER TABLE puf_head ADD COLUMN folds bigint NOT NULL DEFAULT 0, DROP COLUMN writer;
    -- The newest commits, each with a mark of its own: a process whose connection was lost finds its commit here.
    CREATE TABLE puf_commits (version bigint PRIMARY KEY, mark text NOT NULL);
    -- What dies with the processes. Unlogged: it is in no write-ahead log and in no backup.
    CREATE UNLOGGED TABLE puf_servers (
        id text PRIMARY KEY,
        -- Grows while the process is alive.
        beats bigint NOT NULL,
        -- Bytes that it has sent since the commit of this round.
        round bigint NOT NULL,
        sent bigint NOT NULL,
        stop boolean NOT NULL DEFAULT false
    );
    CREATE UNLOGGED TABLE puf_presence (
        client text COLLATE "C" PRIMARY KEY,
        -- Grows while any process hears the client.
        beats bigint NOT NULL,
        activity text NOT NULL,
        at timestamptz NOT NULL
    ) WITH (fillfactor = 50);
    """,
)


def make(db: Connection, steps: Sequence[str] = STEPS) -> None:
    """Makes the tables of a new federation. The caller opens the transaction."""
    if version(db) is not None:
        raise UsageError(
            "this schema of the database already holds a federation; choose another database, or another schema with "
            "?options=-csearch_path%3DNAME"
        )
    upgrade(db, 0, steps)


def version(db: Connection) -> int | None:
    """The version of the tables; None: there are none."""
    if db.execute("SELECT to_regclass('puf_head')").fetchone() == (None,):
        return None
    row = db.execute("SELECT tables FROM puf_head").fetchone()
    return int(row[0]) if row else 0


def migrate(db: Connection, steps: Sequence[str] = STEPS) -> int:
    """Brings the tables to the newest version. Returns the version found. The caller opens the transaction."""
    found = version(db)
    if found is None:
        raise UsageError("this schema of the database holds no federation; make one with `puf-server init`")
    if found > len(steps):
        raise Mismatch(
            f"the database has tables of version {found}, this server reads {len(steps)}: a newer PUF made them; "
            "serve it with that version"
        )
    upgrade(db, found, steps)
    return found


def upgrade(db: Connection, found: int, steps: Sequence[str]) -> None:
    for step in steps[found:]:
        db.execute(step.encode())
    db.execute("UPDATE puf_head SET tables = %s", (len(steps),))
