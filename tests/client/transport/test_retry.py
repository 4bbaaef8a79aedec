"""Which failures of a call are repeated, and for how long."""

from __future__ import annotations

import threading

import grpc
import pytest

from puf_client.transport.retry import Attempts, Connectivity, RetryPolicy
from puf_common.errors import NotAuthenticated, PufError, Unavailable

FAST = RetryPolicy(patience=30.0, first_pause=0.001, longest_pause=0.004)


class Failure(grpc.RpcError):
    """A failed call as grpc raises it."""

    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[()]:
        return ()


REFUSED = Failure(grpc.StatusCode.UNAVAILABLE, "connection refused")


def test_a_call_without_an_answer_is_repeated_until_the_patience_ends() -> None:
    server = Connectivity("h:1", FAST)
    Attempts(server).failed(REFUSED)
    with pytest.raises(Unavailable, match="gave up after 0 s"):
        Attempts(Connectivity("h:1", RetryPolicy(patience=0.0))).failed(REFUSED)


def test_a_server_that_has_answered_is_waited_for_without_limit() -> None:
    server = Connectivity("h:1", RetryPolicy(patience=0.0, first_pause=0.001, longest_pause=0.001))
    server.up()
    attempts = Attempts(server)
    for _ in range(5):
        attempts.failed(REFUSED)


def test_a_refusal_of_the_server_is_raised_and_counts_as_an_answer() -> None:
    server = Connectivity("h:1", FAST)
    with pytest.raises(PufError):
        Attempts(server).failed(Failure(grpc.StatusCode.INVALID_ARGUMENT, "no"))
    assert server.reached


def test_a_failed_handshake_ends_the_attempts_before_the_first_answer() -> None:
    failure = Failure(grpc.StatusCode.UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate")
    with pytest.raises(NotAuthenticated, match="--tls-ca"):
        Attempts(Connectivity("h:1", FAST, tls=True)).failed(failure)


def test_closing_the_connection_ends_a_pause() -> None:
    server = Connectivity("h:1", RetryPolicy(first_pause=600.0, longest_pause=600.0))
    server.up()
    entered = threading.Event()
    raised: list[PufError] = []

    def wait() -> None:
        entered.set()
        try:
            Attempts(server).pause()
        except Unavailable as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    entered.wait()
    server.closing.set()
    thread.join(timeout=30)
    assert [error.message for error in raised] == ["the connection was closed"]
    with pytest.raises(Unavailable, match="closed"):
        Attempts(server).failed(REFUSED)


def test_an_outage_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    server = Connectivity("h:1", FAST)
    with caplog.at_level("INFO"):
        server.up()
        for _ in range(3):
            server.down(Unavailable("no answer"))
        server.up()
        server.up()
    events = [record.msg["event"] for record in caplog.records if isinstance(record.msg, dict)]
    assert events == ["the server does not answer; retrying", "the server answers again"]
