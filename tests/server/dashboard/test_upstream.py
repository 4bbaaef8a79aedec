"""Calls to the server: shared, fresh after an event, and at a bounded rate."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.running import make_state, running

from puf_common.errors import NotYours, PufError, TooMuch, Unavailable
from puf_common.v1 import operator_pb2 as op
from puf_server.dashboard.upstream import Upstream
from puf_server.rpc.operator import OperatorService
from puf_server.runtime.server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(make_state(tmp_path / "state")) as server:
        yield server


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls that reach the server."""
    counted: Counter[str] = Counter()
    for name in ("Status", "ListClients"):
        original = getattr(OperatorService, name)

        async def count(self: Any, request: Any, context: Any, name: str = name, original: Any = original) -> Any:
            counted[name] += 1
            return await original(self, request, context)

        monkeypatch.setattr(OperatorService, name, count)
    return counted


def with_upstream(server: Server, test: Any) -> Any:
    async def run() -> Any:
        upstream = Upstream(lambda: (f"127.0.0.1:{server.operator_port}", None))
        await upstream.reconnect()
        try:
            return await test(upstream)
        finally:
            await upstream.close()

    return asyncio.run(run())


def test_equal_calls_are_made_once_and_again_after_an_event(calls: Counter[str], server: Server) -> None:
    async def test(upstream: Upstream) -> None:
        await asyncio.gather(*(upstream.call("Status", op.StatusRequest()) for _ in range(100)))
        assert calls["Status"] == 1
        for _ in range(3):
            upstream.revision += 1
            await asyncio.gather(*(upstream.call("Status", op.StatusRequest()) for _ in range(100)))
        assert calls["Status"] == 4

    with_upstream(server, test)


def test_many_different_calls_are_refused_here_and_not_made(calls: Counter[str], server: Server) -> None:
    async def test(upstream: Upstream) -> list[Any]:
        found = (upstream.call("ListClients", op.ListClientsRequest(name=str(i))) for i in range(1000))
        return list(await asyncio.gather(*found, return_exceptions=True))

    results = with_upstream(server, test)
    refused = [r for r in results if isinstance(r, TooMuch)]
    assert len(refused) == 1000 - calls["ListClients"]
    assert 20 <= calls["ListClients"] <= 100


def test_the_server_sees_a_viewer(server: Server) -> None:
    async def test(upstream: Upstream) -> None:
        await upstream.call("Pause", op.PauseRequest())

    with pytest.raises(NotYours, match="a viewer cannot call Pause"):
        with_upstream(server, test)
    assert not server.engine.state.paused


def test_a_call_without_a_connection_says_so(server: Server) -> None:
    async def test(upstream: Upstream) -> None:
        await upstream.close()
        with pytest.raises(Unavailable):
            await upstream.call("Status", op.StatusRequest())
        with pytest.raises(PufError):
            async for _ in upstream.follow(0):
                pass

    with_upstream(server, test)
