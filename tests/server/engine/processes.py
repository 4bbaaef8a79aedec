"""Several processes of one federation. Each `Local` is one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
from tests.server.local import Local

from puf_server.storage import postgres_servers

NAMES = ("a", "b", "c")


def until(condition: Callable[[], bool]) -> None:
    """Waits for another thread."""
    done = threading.Event()
    while not condition():
        done.wait(0.005)


def exchange(local: Local) -> None:
    """What the process does once a second."""
    database = local.engine.store.database
    servers, watcher = database._servers, database._servers._watcher  # type: ignore[attr-defined]
    assert isinstance(servers, postgres_servers.Servers)
    with psycopg.connect(**servers.address._parameters, autocommit=True) as db:
        servers.exchange.run(db, watcher)
