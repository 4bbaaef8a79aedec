"""The door: every call of every service on a listener, of all four kinds, passes here before any other code sees it.

A call is admitted first, then counted against its caller's limits, and only then its bytes are decoded. Calls that last
are looked at again while they do: one whose caller is no longer let in ends, whatever it is doing.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from puf_common.errors import InvalidArgument, NotAuthenticated, PufError, TooMuch
from puf_common.logging import get_logger
from puf_common.network.status import abort
from puf_server.admission.identity import Context, Identify
from puf_server.admission.rate_limit import Bucket, Meters
from puf_server.core.config import Limits

__all__ = ["HEALTH", "Guard"]

# Says whether the server serves and nothing else; probes of load balancers hold no credentials.
HEALTH = "/grpc.health.v1.Health/Check"

_EXPIRY_SECONDS = 5.0
# Calls that leave something on disk for good, if only a line in the audit log.
_WRITES = frozenset(
    f"/puf.v1.Federation/{name}"
    for name in (
        "Join", "DeclineWork", "Leave", "FileUnlearning", "WithdrawUnlearning", "ReportMeasurement", "GetReceipt",
        "PresentReceipt",
    )
)  # fmt: skip
# A receipt lists every model that was withdrawn and every export.
_LARGE = frozenset({"/puf.v1.Federation/PresentReceipt"})

log = get_logger(__name__)


class _Call:
    """A call under way."""

    def __init__(self, context: Context, name: str, task: asyncio.Task[Any]) -> None:
        self.context = context
        self.name = name
        self.task = task
        self.refused: PufError | None = None


class Guard(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(
        self, identify: Identify, changes: Callable[[], object], limits: Limits | None = None, *, strict: bool = True
    ) -> None:
        """`changes` answers differently after somebody was revoked. Where callers are who they say they are (not
        `strict`), health, reflection and unknown methods are answered to everybody."""
        self._identify = identify
        self._changes = changes
        self._limits = limits or Limits()
        self._strict = strict
        self._writes = Meters(self._limits.writes_per_minute)
        self._lines = Bucket(self._limits.refusals_per_minute)
        self._unsaid = 0
        self._open_calls: dict[str, int] = {}
        self._seen = changes()
        self._looked = time.monotonic()
        self._calls: set[_Call] = set()

    def look_again(self) -> None:
        """Ends calls whose caller is no longer let in. To be called from the event loop, often; costs something only
        when somebody was revoked, and every few seconds, because certificates and tokens expire."""
        seen, now = self._changes(), time.monotonic()
        if seen == self._seen and now - self._looked < _EXPIRY_SECONDS:
            return
        self._seen, self._looked = seen, now
        for call in [c for c in self._calls if c.refused is None and c.name]:
            try:
                self._identify(call.context)
            except PufError as error:
                log.warning("call ended", client=call.name, reason=error.message)
                call.refused = error
                call.task.cancel()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None and not self._strict:
            return None
        if handler is None:
            # An unknown method is answered like a known one: who is not let in learns nothing.
            return grpc.unary_unary_rpc_method_handler(self._answer(method, _unknown, None))
        make, behaviour = _kind(handler)
        decode = self._decoded(method, handler)
        answer = self._stream if handler.response_streaming else self._answer
        # No deserializer: gRPC hands over bytes, and nobody looks at them before it is known whose they are.
        return make(answer(method, behaviour, decode), None, handler.response_serializer)

    def _decoded(self, method: str, handler: Any) -> Callable[[Any], Any]:
        """The request, or each of its messages as they come."""
        if handler.request_deserializer is None:
            # A method that reads its frames itself, and faster.
            return lambda messages: messages
        most = None if handler.request_streaming or method in _LARGE else self._limits.request_bytes

        def one(data: bytes) -> Any:
            if most is not None and len(data) > most:
                raise TooMuch(f"a request of {len(data)} bytes; at most {most} are taken", limit=most)
            try:
                return handler.request_deserializer(data)
            except (DecodeError, ValueError):
                raise InvalidArgument("the request cannot be decoded: it is no message of this contract") from None

        async def each(messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
            async for data in messages:
                yield one(data)

        return each if handler.request_streaming else one

    def _answer(
        self, method: str, behaviour: Callable[..., Awaitable[Any]], decode: Callable[[Any], Any] | None
    ) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, context: Context) -> Any:
            name = await self._admit(method, context)
            with self._open(context, name) as opened:
                try:
                    return await behaviour(await self._request(method, name, request, decode, context), context)
                except asyncio.CancelledError:
                    await _end(opened)
                    raise

        return call

    def _stream(
        self, method: str, behaviour: Callable[..., Any], decode: Callable[[Any], Any]
    ) -> Callable[..., Awaitable[None]]:
        # Writes instead of yielding: a call that ends while a slow reader blocks it is still in our hands then.
        async def call(request: Any, context: Context) -> None:
            name = await self._admit(method, context)
            with self._open(context, name) as opened:
                try:
                    message = await self._request(method, name, request, decode, context)
                    await _write_all(behaviour(message, context), context)
                except asyncio.CancelledError:
                    await _end(opened)
                    raise

        return call

    async def _admit(self, method: str, context: Context) -> str:
        if method == HEALTH or (not self._strict and method.startswith("/grpc.")):
            return ""
        try:
            return self._identify(context)
        except PufError as error:
            self._refusal(call=method, peer=context.peer(), reason=error.message)
            await abort(context, error)
        except Exception as error:
            # Whatever a strange certificate or token did to us: it does not come in.
            self._refusal(call=method, peer=context.peer(), reason=f"{type(error).__name__}: {str(error)[:200]}")
            await abort(context, NotAuthenticated("the caller cannot be identified"))

    async def _request(
        self, method: str, name: str, request: Any, decode: Callable[[Any], Any] | None, context: Context
    ) -> Any:
        """What an admitted caller asks for, if it is within its limits and a message at all."""
        limits = self._limits
        try:
            if name and self._open_calls.get(name, 0) > limits.calls_per_client:
                raise TooMuch(f"{name} has {limits.calls_per_client} calls open already", limit=limits.calls_per_client)
            if name and method in _WRITES and not (bucket := self._writes.of(name)).take():
                raise TooMuch(
                    f"{name} has made {limits.writes_per_minute:g} changes within a minute",
                    limit=limits.writes_per_minute,
                    retry_seconds=bucket.seconds,
                )
            return decode(request) if decode else request
        except PufError as error:
            self._refusal(call=method, client=name, peer=context.peer(), reason=error.message)
            await abort(context, error)

    def _refusal(self, **facts: str) -> None:
        """A line in the log, but not one for every stone that somebody throws."""
        if not self._lines.take():
            self._unsaid += 1
            return
        if self._unsaid:
            facts["more_since"] = str(self._unsaid)
            self._unsaid = 0
        log.warning("refused", **facts)

    @contextmanager
    def _open(self, context: Context, name: str) -> Iterator[_Call]:
        task = asyncio.current_task()
        assert task is not None
        opened = _Call(context, name, task)
        self._calls.add(opened)
        self._open_calls[name] = self._open_calls.get(name, 0) + 1
        try:
            yield opened
        finally:
            self._calls.discard(opened)
            self._open_calls[name] -= 1
            if not self._open_calls[name]:
                del self._open_calls[name]


def _kind(handler: Any) -> tuple[Callable[..., Any], Any]:
    if handler.request_streaming and handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler, handler.stream_stream
    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler, handler.stream_unary
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler, handler.unary_stream
    return grpc.unary_unary_rpc_method_handler, handler.unary_unary


async def _write_all(replies: Any, context: Context) -> None:
    if inspect.isawaitable(replies):
        # A method that writes by itself.
        await replies
        return
    try:
        async for reply in replies:
            await context.write(reply)
    finally:
        await replies.aclose()


async def _end(call: _Call) -> None:
    """Turns our own cancellation into the reason for it; one that came from outside goes on."""
    if call.refused is not None:
        call.task.uncancel()
        await abort(call.context, call.refused)


async def _unknown(request: Any, context: Context) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
