"""Fixtures of tests with several processes in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.postgres import Postgres
from tests.running import make_state, tiny_config
from tests.server.local import Local

from puf_server.storage import postgres_servers


@pytest.fixture
def address(postgres: Postgres) -> str:
    return postgres.address()


@pytest.fixture
def start(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Local]]:
    """Starts a process. It exchanges with the others when the test says so."""
    monkeypatch.setattr(postgres_servers, "EXCHANGE_SECONDS", 3600.0)
    state = make_state(
        tmp_path / "state", tiny_config(plan={"min_clients": 3, "rounds": 4, "absent_seconds": 60.0}), database=address
    )
    with ExitStack() as stack:

        def started() -> Local:
            local = Local(state, database=address)
            stack.callback(local.engine.close)
            return local

        yield started
