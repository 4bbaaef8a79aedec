"""`/metrics` over HTTP. The scraper shows no credential, so everything that a caller can use is bounded.

A connection carries one request and ends after some seconds in any case. Connections beyond a small number are closed at
once. So no caller can take the descriptors that clients and operators need.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, make_asgi_app
from uvicorn.protocols.http.h11_impl import H11Protocol

from puf_common.errors import UsageError
from puf_common.network.addresses import parse_address

# A scraper needs one connection.
CONNECTIONS = 16
# From the first byte of a connection to the last one.
SECONDS = 10.0
HEADER_BYTES = 8192
_ENDING_SECONDS = 1

Send = Callable[[dict[str, Any]], Awaitable[None]]


class MetricsEndpoint:
    """Serves the registry in a thread of its own until `close`, on an address of its own.

    `hosts` are the names under which scrapers reach it, besides IP addresses and names without a dot.
    """

    def __init__(self, registry: CollectorRegistry, address: str, hosts: Sequence[str] = ()) -> None:
        listener = _listener(address)
        self.port: int = listener.getsockname()[1]
        config = uvicorn.Config(
            _Guard(make_asgi_app(registry), {host.lower() for host in hosts}),
            http=_BoundedConnection,
            ws="none",
            lifespan="off",
            # A caller without credentials must not fill the log.
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=HEADER_BYTES,
            backlog=CONNECTIONS,
            timeout_graceful_shutdown=_ENDING_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="puf-metrics")
        self._thread.start()

    def close(self) -> None:
        """Stops the server. Blocks until its thread has ended."""
        self._server.should_exit = True
        self._thread.join()


def _listener(address: str) -> socket.socket:
    host, port = parse_address(address, "--metrics", free_port=True)
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
    except OSError as error:
        raise UsageError(f"cannot listen on {address} for --metrics: {error.strerror}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        # A scraper that connects before the thread runs waits.
        listener.listen(CONNECTIONS)
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen on {address} for --metrics: {error.strerror}") from None
    return listener


class _BoundedConnection(H11Protocol):
    """One connection. It is closed at once beyond the number of connections, and at its end of time."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self._timer = self.loop.call_later(SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)


class _Guard:
    """Passes `GET /metrics` for a known host on; answers all other requests with an error."""

    def __init__(self, page: Callable[..., Awaitable[None]], hosts: set[str]) -> None:
        self._page = page
        self._hosts = hosts

    async def __call__(self, scope: Any, receive: Callable[..., Any], send: Send) -> None:
        async def closing(message: dict[str, Any]) -> None:
            """Ends the connection after the answer."""
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        status, why = self._refusal(scope)
        if not status:
            await self._page(scope, receive, closing)
            return
        await closing({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
        await closing({"type": "http.response.body", "body": f"{why}\n".encode()})

    def _refusal(self, scope: Any) -> tuple[int, str]:
        """The status of a request that is refused, and why; 0 if it is served."""
        if not all((name + value).isascii() for name, value in scope["headers"]):
            return 400, "headers must be ASCII"
        named = [value.decode() for name, value in scope["headers"] if name == b"host"]
        if len(named) != 1 or not self._known(named[0]):
            return 421, "this host is not known here: add it with --metrics-host"
        if scope["path"] != "/metrics":
            return 404, "there is only /metrics"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "only GET is allowed"
        return 0, ""

    def _known(self, host: str) -> bool:
        """Whether a Host names this machine. A name of the internet could be that of a hostile page (DNS rebinding)."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and ":" in host else host
        name = name.removeprefix("[").removesuffix("]").lower()
        if name in self._hosts or (name and "." not in name and ":" not in name):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
