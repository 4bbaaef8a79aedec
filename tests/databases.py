"""Access of tests to a store's database."""

from __future__ import annotations

import sqlite3

from puf_common.audit_chain import AuditEntry
from puf_server.storage.sqlite_database import SqliteDatabase
from puf_server.storage.state_store import Store

__all__ = ["audit_entries", "sqlite"]


def sqlite(store: Store) -> sqlite3.Connection:
    """The connection of a store in SQLite."""
    assert isinstance(store.database, SqliteDatabase)
    return store.database.db


def audit_entries(store: Store) -> list[AuditEntry]:
    with store.database.audit_log() as log:
        return list(log.lines())
