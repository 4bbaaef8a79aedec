"""The web application and its server process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puf_common.errors import NotFound, PufError, TooMuch, UsageError
from puf_common.logging import get_logger
from puf_common.network.addresses import parse_address
from puf_server.dashboard.events import Events
from puf_server.dashboard.history import History
from puf_server.dashboard.pages import Pages
from puf_server.dashboard.security import Access, Guard
from puf_server.dashboard.upstream import LookUp, Upstream

# Connections at the same time. More are answered with 503.
_CONNECTIONS = 200
_END_SECONDS = 1
_NICENESS = 10
log = get_logger(__name__)


@dataclass(frozen=True)
class WebTls:
    certificate: Path
    key: Path


def application(look_up: LookUp, access: Access) -> ASGIApp:
    """The dashboard of the server that `look_up` finds. The guard sees every request and every answer."""
    upstream = Upstream(look_up)
    events = Events(upstream)
    history = History(upstream)
    pages = Pages(upstream, events, history)

    @asynccontextmanager
    async def following(_: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(work) for work in (events.run(), history.prepare())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await upstream.close()

    pages_app = Starlette(
        routes=[
            Route("/", pages.overview, methods=["GET"]),
            Route("/requests", pages.requests, methods=["GET"]),
            Route("/requests/{ticket}", pages.request, methods=["GET"]),
            Route("/requests/{ticket}/receipt.json", pages.receipt, methods=["GET"]),
            Route("/clients", pages.clients, methods=["GET"]),
            Route("/rounds", pages.rounds, methods=["GET"]),
            Route("/models", pages.models, methods=["GET"]),
            Route("/audit", pages.audit, methods=["GET"]),
            Route("/charts.json", pages.charts, methods=["GET"]),
            Route("/events", pages.events, methods=["GET"]),
            Route("/assets/{name}", pages.asset, methods=["GET"]),
        ],
        exception_handlers=_problems(pages),
        lifespan=following,
    )
    return Guard(pages_app, access)


def _problems(pages: Pages) -> Mapping[Any, Callable[[Request, Any], Response]]:
    """A page for every kind of error."""

    def failed(_: Request, error: PufError) -> Response:
        if isinstance(error, NotFound):
            return pages.problem("Not found", error.message, 404)
        if isinstance(error, TooMuch):
            return pages.problem("Too many requests", error.message, 503, **{"retry-after": "2"})
        return pages.problem("The server does not answer", error.message, 503, **{"retry-after": "5"})

    def refused(_: Request, error: HTTPException) -> Response:
        return pages.problem("Not found", "There is no such page.", error.status_code)

    def broken(_: Request, error: Exception) -> Response:
        return pages.problem("Internal error", "The log of the dashboard has more.", 500)

    return {PufError: failed, HTTPException: refused, Exception: broken}


def listening(listen: str) -> socket.socket:
    """A socket that listens on HOST:PORT. Port 0 takes a free one."""
    host, port = parse_address(listen, "cannot listen:", free_port=True)
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UsageError(f"cannot listen on {listen}: {error.strerror}") from None


def web_server(app: ASGIApp, tls: WebTls | None = None) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_END_SECONDS,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )
    return uvicorn.Server(config)


def serve(
    look_up: LookUp, listen: str, access: Access, tls: WebTls | None = None, announce: Path | None = None
) -> None:
    """Serves the dashboard until a signal arrives. The file `announce` gets the port once it listens."""
    # On the server's machine the federation goes first.
    os.nice(_NICENESS)
    # uvicorn ends in order at a signal and then raises it again, which would end this process with an error.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    with listening(listen) as listener:
        server = web_server(application(look_up, access), tls)
        port, host = listener.getsockname()[1], listen.rpartition(":")[0]
        named = host if host in access.hosts else min(access.hosts)
        log.info("dashboard", address=f"http{'s' * (tls is not None)}://{named}:{port}/")
        if announce is not None:
            announce.write_text(f"{port}\n")
        server.run(sockets=[listener])
