"""When a failed call is repeated, and how long the client waits before that.

Until the server's first answer the wait is limited, so that a wrong address ends with a clear message. After the first
answer the client waits without limit, because an operator may restart the server. Pauses grow and have jitter, so that
many clients do not return at the same instant.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

import grpc

from puf_common.errors import NotAuthenticated, PufError, Unavailable
from puf_common.logging import get_logger
from puf_common.network.status import error_from, is_transient
from puf_common.network.tls import refusal

log = get_logger("puf_client.transport.grpc")

# A server that starts or stops also closes connections. A refusal that may have this cause is final after so long.
_DOUBT_SECONDS = 2.0
# The longest wait that a server can ask for.
_MOST_SECONDS = 600.0

_jitter = random.SystemRandom()


@dataclass(frozen=True)
class RetryPolicy:
    """Seconds to wait for a server that never answered, and seconds between two attempts."""

    patience: float = 30.0
    first_pause: float = 0.2
    longest_pause: float = 10.0


class Connectivity:
    """Whether the server answers. Several threads report it; each outage gives one log entry for its start and its end."""

    def __init__(self, target: str, policy: RetryPolicy, *, tls: bool = False) -> None:
        self.target = target
        self.policy = policy
        self.tls = tls
        # Whether the server has ever answered.
        self.reached = False
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._down_since: float | None = None

    def up(self) -> None:
        """Notes an answer of the server."""
        with self._lock:
            since, self._down_since, self.reached = self._down_since, None, True
        if since is not None:
            log.info("the server answers again", server=self.target, after_seconds=round(time.monotonic() - since, 1))

    def down(self, error: PufError) -> None:
        """Notes a call without an answer."""
        with self._lock:
            new, reached = self._down_since is None, self.reached
            if new:
                self._down_since = time.monotonic()
        if new and reached:
            log.warning("the server does not answer; retrying", server=self.target, reason=error.message)
        elif new:
            log.info("waiting for the server", server=self.target, seconds=self.policy.patience, reason=error.message)

    def closed(self) -> Unavailable:
        """The error for calls on a connection that this client closed."""
        return Unavailable("the connection was closed", server=self.target)


class Attempts:
    """The attempts of one call: decides whether to repeat the call, and waits before the next attempt."""

    def __init__(self, server: Connectivity) -> None:
        self._server = server
        self._started = time.monotonic()
        self._pause = server.policy.first_pause
        self._logged = False

    def failed(self, failure: grpc.RpcError) -> None:
        """Returns when it is time for another attempt. Raises the error that the failure stands for if there is none."""
        server = self._server
        if server.closing.is_set():
            raise server.closed() from None
        error = error_from(failure, server.target)
        if not is_transient(error):
            server.up()
            raise error from None
        patience = server.policy.patience
        if "retry_seconds" in error.facts:
            # The server itself asked to wait, so it is reachable.
            server.up()
            if not self._logged:
                log.warning("the server asks the client to wait", server=server.target, reason=error.message)
                self._logged = True
        elif not server.reached and (reason := self._permanent(failure)) is not None:
            raise NotAuthenticated(reason) from None
        elif not server.reached and time.monotonic() - self._started >= patience:
            raise Unavailable(f"{error.message}; gave up after {patience:g} s", **error.facts) from None
        else:
            server.down(error)
        self.pause(min(float(error.facts.get("retry_seconds", 0)), _MOST_SECONDS))

    def pause(self, at_least: float = 0.0) -> None:
        """Waits before the next attempt; the next pause is twice as long."""
        server = self._server
        seconds = max(at_least, self._pause) * _jitter.uniform(0.75, 1.25)
        if not server.reached:
            seconds = min(seconds, max(0.0, server.policy.patience - (time.monotonic() - self._started)))
        self._pause = min(2 * self._pause, server.policy.longest_pause)
        if server.closing.wait(seconds):
            raise server.closed()

    def _permanent(self, failure: grpc.RpcError) -> str | None:
        """Why a TLS handshake between this client and this server can never succeed, or None."""
        server = self._server
        found = refusal(failure.details() or "", server.target, tls=server.tls)
        waited = time.monotonic() - self._started
        if found is None or not (found.certain or waited >= min(_DOUBT_SECONDS, server.policy.patience)):
            return None
        return found.sentence
