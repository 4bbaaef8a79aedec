"""When to try a call again, and how long to wait for it.

Until the server's first answer patience is limited, so that a wrong address ends with a clear line. Afterwards it is
not: a server may be restarted under its clients, for as long as that takes. Pauses grow and are jittered, so that a
thousand clients do not come back in the same instant.
"""

from __future__ import annotations

import random
import threading
import time

import grpc

from puf_common.errors import NotAuthenticated, PufError, Unavailable
from puf_common.logging import get_logger
from puf_common.network.status import error_from, is_transient
from puf_common.network.tls import refusal

__all__ = ["Attempts", "Line"]

log = get_logger("puf_client.transport.grpc")

# A server that is just starting or stopping hangs up too.
_DOUBT_SECONDS = 2.0

_jitter = random.SystemRandom()


class Line:
    """The line to one server. Several threads notice an outage; one entry in the log tells of it, one of its end."""

    def __init__(
        self, target: str, patience: float, first_pause: float, longest_pause: float, *, tls: bool = False
    ) -> None:
        self.target = target
        self.tls = tls
        self.patience = patience
        self.first_pause = first_pause
        self.longest_pause = longest_pause
        # Whether the server has ever answered.
        self.reached = False
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._down_since: float | None = None

    def up(self) -> None:
        with self._lock:
            since, self._down_since, self.reached = self._down_since, None, True
        if since is not None:
            log.info("the server answers again", server=self.target, after_seconds=round(time.monotonic() - since, 1))

    def down(self, error: PufError) -> None:
        with self._lock:
            new, reached = self._down_since is None, self.reached
            if new:
                self._down_since = time.monotonic()
        if new and reached:
            log.warning("the server is gone; trying until it is back", server=self.target, reason=error.message)
        elif new:
            log.info("waiting for the server", server=self.target, seconds=self.patience, reason=error.message)

    def closed(self) -> Unavailable:
        return Unavailable("the connection was closed", server=self.target)


class Attempts:
    """The attempts of one call: decides whether there is another one, and waits for its time."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._started = time.monotonic()
        self._pause = line.first_pause
        self._told = False

    def failed(self, failure: grpc.RpcError) -> None:
        """Returns when it is time to try again; otherwise raises what the failure means."""
        line = self._line
        if line.closing.is_set():
            raise line.closed() from None
        error = error_from(failure, line.target)
        if not is_transient(error):
            line.up()
            raise error from None
        if "retry_seconds" in error.facts:
            # The server's own words: it is there, and cannot take the call now.
            line.up()
            if not self._told:
                log.warning("the server asks to wait", server=line.target, reason=error.message)
                self._told = True
        elif not line.reached and (why := self._never(failure)) is not None:
            raise NotAuthenticated(why) from None
        elif not line.reached and time.monotonic() - self._started >= line.patience:
            raise Unavailable(f"{error.message}; gave up after {line.patience:g} s", **error.facts) from None
        else:
            line.down(error)
        self.pause(float(error.facts.get("retry_seconds", 0)))

    def _never(self, failure: grpc.RpcError) -> str | None:
        """Why this server and this client do not come together over TLS, however long one waits."""
        line = self._line
        why = refusal(failure.details() or "", line.target, tls=line.tls)
        waited = time.monotonic() - self._started
        if why is None or not (why.certain or waited >= min(_DOUBT_SECONDS, line.patience)):
            return None
        return why.sentence

    def pause(self, at_least: float = 0.0) -> None:
        line = self._line
        seconds = max(at_least, self._pause) * _jitter.uniform(0.75, 1.25)
        if not line.reached:
            seconds = min(seconds, max(0.0, line.patience - (time.monotonic() - self._started)))
        self._pause = min(2 * self._pause, line.longest_pause)
        if line.closing.wait(seconds):
            raise line.closed()
