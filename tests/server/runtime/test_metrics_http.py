"""The metrics port has no credentials: connections, time, headers, paths, methods and hosts are bounded."""

from __future__ import annotations

import http.client
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from tests.grpc.raw import Raw
from tests.running import make_state, running

from puf_lab.federations.processes import wait_until
from puf_server.runtime import metrics_http
from puf_server.runtime import server as runtime
from puf_server.runtime.server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(make_state(tmp_path / "state"), metrics="127.0.0.1:0") as server:
        yield server


def ask(server: Server, method: str = "GET", path: str = "/metrics", **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=20)) as connection:
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def works(server: Server) -> bool:
    try:
        return ask(server)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/metrics", {}, 200),
        ("HEAD", "/metrics", {}, 200),
        ("GET", "/", {}, 404),
        ("GET", "/metrics/../secret", {}, 404),
        ("POST", "/metrics", {}, 405),
        ("OPTIONS", "/metrics", {}, 405),
        ("GET", "/metrics", {"Host": "server:9300"}, 200),
        ("GET", "/metrics", {"Host": "[::1]:9300"}, 200),
        ("GET", "/metrics", {"Host": "10.1.2.3"}, 200),
        ("GET", "/metrics", {"Host": "page.example.com:9300"}, 421),
        ("GET", "/metrics", {"Host": ""}, 421),
    ],
)
def test_only_the_page_is_served_and_only_for_known_hosts(
    server: Server, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    assert ask(server, method, path, **headers)[0] == status


def test_a_host_can_be_added(tmp_path: Path) -> None:
    from prometheus_client import CollectorRegistry

    endpoint = metrics_http.MetricsEndpoint(CollectorRegistry(), "127.0.0.1:0", ["Metrics.Example.com"])
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=20)) as connection:
            connection.request("GET", "/metrics", headers={"Host": "metrics.example.com:9300"})
            assert connection.getresponse().status == 200
    finally:
        endpoint.close()


def test_half_sent_requests_take_a_bounded_number_of_descriptors_for_a_bounded_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        slow = []
        for _ in range(200):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.metrics_port), 20))
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
            slow.append(connection)
        closed = 0
        for connection in slow[metrics_http.CONNECTIONS :]:
            # Beyond the bound the server closes at once; a connection that it kept would wait for ten seconds.
            try:
                closed += connection.recv(1) == b""
            except ConnectionResetError:
                closed += 1
        assert closed == 200 - metrics_http.CONNECTIONS
        # The other listeners are not affected.
        with Raw(server.port, "a") as a:
            a.join()
    wait_until(lambda: works(server), 20)


def test_a_connection_that_sends_nothing_is_ended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "SECONDS", 0.2)
    with ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.metrics_port), 20))
            for _ in range(metrics_http.CONNECTIONS)
        ]
        for connection in idle:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        assert works(server)


def test_long_headers_are_refused(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.metrics_port), 20) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 2 * metrics_http.HEADER_BYTES)
        assert connection.recv(100).startswith(b"HTTP/1.1 4")


def test_a_request_that_is_no_http_is_refused_without_a_log_line(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", server.metrics_port), 20) as connection:
        connection.sendall(b"\x00\xff garbage\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert ask(server, X="\xff")[0] == 400
    assert not caplog.records


def test_a_connection_ends_after_its_answer(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.metrics_port), 20) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        with connection.makefile("rb") as reply:
            assert b"puf_round" in reply.read()


def test_connections_leave_descriptors_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (256, 1024)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    assert runtime._raise_file_limit(4096) == 256
    assert limits["now"] == (1024, 1024)
    limits["now"] = (256, resource.RLIM_INFINITY)
    assert runtime._raise_file_limit(4096) == 4096
