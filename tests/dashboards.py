"""A dashboard in this process, for tests: real sockets in front, a real server behind."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from puf_common.network.tls import ClientTls
from puf_server.dashboard.app import WebTls, application, listening, web_server
from puf_server.dashboard.security import Access, allowed_hosts
from puf_server.runtime.server import Server

LOCAL = Access(allowed_hosts("127.0.0.1"))
PATHS = (
    "/", "/requests", "/requests/t-1", "/requests/t-1/receipt.json", "/clients", "/rounds", "/models", "/audit",
    "/charts.json", "/events", "/assets/style.css", "/no-such-page",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    code: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class Dashboard:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """The answer to one request. An underscore in the name of a header stands for a dash."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            reply = connection.getresponse()
            text = "" if reply.getheader("content-type", "").startswith("text/event-stream") else reply.read().decode()
            return Answer(reply.status, {k.lower(): v for k, v in reply.getheaders()}, text)
        finally:
            connection.close()

    def events(self, count: int, **headers: str) -> list[str]:
        """The first blocks of the stream of events."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", "/events", headers={k.replace("_", "-"): v for k, v in headers.items()})
        reply = connection.getresponse()
        found: list[str] = []
        block = ""
        while len(found) < count:
            line = reply.readline().decode()
            assert line, f"the stream ended after {found}"
            block += line
            if line == "\n":
                found.append(block.strip())
                block = ""
        reply.close()
        connection.close()
        return found


@contextmanager
def dashboard(
    target: Server | Callable[[], str],
    tls: ClientTls | None = None,
    *,
    access: Access = LOCAL,
    web: WebTls | None = None,
    port: int = 0,
) -> Iterator[Dashboard]:
    """Serves the dashboard of a server, or of the operator port that `target` returns, on a free port."""

    def look_up() -> tuple[str, ClientTls | None]:
        return (f"127.0.0.1:{target.operator_port}" if isinstance(target, Server) else target()), tls

    server = web_server(application(look_up, access), web)
    with listening(f"127.0.0.1:{port}") as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="dashboard")
        thread.start()
        try:
            yield Dashboard(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
