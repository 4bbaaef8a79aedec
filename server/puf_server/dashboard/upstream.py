"""The connection to the operator service: read-only calls, at a bounded rate, however many browsers ask.

The server of the federation must not notice how many pages are open. Equal calls are made once and shared, and all calls
together are paced.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio

from puf_common.errors import PufError, TooMuch, Unavailable
from puf_common.network.addresses import check_target
from puf_common.network.status import ROLE_KEY, channel_options, error_from
from puf_common.network.tls import ClientTls, refusal
from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import operator_pb2_grpc as rpc

_DEADLINE_SECONDS = 10.0
# Longest use of an answer while no event arrives: heartbeats and transfers cause none.
_FRESH_SECONDS = 1.0
# Equal calls are made at most this often.
_SPACING_SECONDS = 0.1
# All calls together, on average; so many more may come at once.
_CALLS_PER_SECOND = 20.0
_BURST = 20
_LONGEST_WAIT_SECONDS = 2.0
_CACHED = 500
_AS_VIEWER = ((ROLE_KEY, "viewer"),)

# Address and credentials of the operator port. They differ after a restart of the server.
LookUp = Callable[[], tuple[str, ClientTls | None]]


@dataclass(frozen=True)
class _Shared:
    """One call that several pages may use."""

    revision: int
    started: float
    reply: asyncio.Future[Any]


class Upstream:
    """Calls of one dashboard to one server. Failures are PufErrors."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._channel: aio.Channel | None = None
        self._stub: rpc.OperatorAsyncStub | None = None
        self._target, self._tls = "", False
        # Grows with every event: an answer from before an event is not used after it.
        self.revision = 0
        self._cache: OrderedDict[tuple[str, bytes], _Shared] = OrderedDict()
        # When the calls so far would have been made at the average rate.
        self._paced_until = 0.0

    async def reconnect(self) -> None:
        """Opens a new connection to the address at which the server is now."""
        await self.close()
        target, tls = await asyncio.to_thread(self._look_up)
        self._target, self._tls = check_target(target, "the operator's address"), tls is not None
        options = channel_options(target)
        self._channel = tls.aio_channel(target, options) if tls else aio.insecure_channel(target, options=options)
        self._stub = rpc.OperatorStub(self._channel)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close(None)
        self._channel = self._stub = None

    async def call(self, method: str, request: Message) -> Any:
        """The answer to a call, from now or from a moment after the last event before now."""
        key, wanted = (method, request.SerializeToString(deterministic=True)), self.revision
        while True:
            known, now = self._cache.get(key), time.monotonic()
            if known is not None and known.revision >= wanted and now - known.started < _FRESH_SECONDS:
                return await asyncio.shield(known.reply)
            if known is None or now - known.started >= _SPACING_SECONDS:
                break
            await asyncio.sleep(known.started + _SPACING_SECONDS - now)
        reply = asyncio.ensure_future(self._paced(method, request))
        # An error is reported to the pages that wait for it; there may be none left.
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._cache[key] = _Shared(self.revision, time.monotonic(), reply)
        self._cache.move_to_end(key)
        while len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return await asyncio.shield(reply)

    async def follow(self, after: int) -> AsyncIterator[Sequence[op.AuditEntry]]:
        """Every audit entry after this number, in order, until the connection ends with an error."""
        try:
            stream = self._connected().FollowAudit(op.FollowAuditRequest(after=after), metadata=_AS_VIEWER)
            async for reply in stream:
                yield reply.entries
        except grpc.RpcError as error:
            raise self._failed(error) from None
        raise Unavailable("the server ended the stream of events")

    async def _paced(self, method: str, request: Message) -> Any:
        now = time.monotonic()
        wait = max(self._paced_until, now) - now - _BURST / _CALLS_PER_SECOND
        if wait > _LONGEST_WAIT_SECONDS:
            raise TooMuch("too many pages are asked for at the same time; try again in a moment", retry_seconds=2)
        self._paced_until = max(self._paced_until, now) + 1 / _CALLS_PER_SECOND
        await asyncio.sleep(max(0.0, wait))
        stub: Any = self._connected()
        try:
            return await getattr(stub, method)(request, timeout=_DEADLINE_SECONDS, metadata=_AS_VIEWER)
        except grpc.RpcError as error:
            raise self._failed(error) from None
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # `reconnect` closed the channel.
            raise Unavailable("the connection to the server was renewed; try again") from None

    def _connected(self) -> rpc.OperatorAsyncStub:
        if self._stub is None:
            raise Unavailable("the dashboard is not connected to the server")
        return self._stub

    def _failed(self, error: grpc.RpcError) -> PufError:
        why = None
        with suppress(AttributeError):
            why = refusal(error.details() or "", self._target, tls=self._tls)
        if why is not None and error.code() is grpc.StatusCode.UNAVAILABLE:
            return Unavailable(why.sentence)
        return error_from(error, self._target)
