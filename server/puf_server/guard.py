"""The door: every call of every service on a listener, of all four kinds, passes here before any other code sees it.

Calls that last are looked at again while they do: one whose caller is no longer let in ends, whatever it is doing.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from grpc import aio

from puf_common.errors import NotAuthenticated, PufError
from puf_common.logging import get_logger
from puf_common.rpc import abort
from puf_server.identity import Context, Identify

__all__ = ["HEALTH", "Guard"]

# Says whether the server serves and nothing else; probes of load balancers hold no credentials.
HEALTH = "/grpc.health.v1.Health/Check"

_EXPIRY_SECONDS = 5.0

log = get_logger(__name__)


class _Call:
    """A call under way."""

    def __init__(self, context: Context, name: str, task: asyncio.Task[Any]) -> None:
        self.context = context
        self.name = name
        self.task = task
        self.refused: PufError | None = None


class Guard(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self, identify: Identify, changes: Callable[[], object]) -> None:
        """`changes` answers differently after somebody was revoked."""
        self._identify = identify
        self._changes = changes
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
        for call in [c for c in self._calls if c.refused is None]:
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
        if method == HEALTH:
            return handler
        if handler is None:
            # An unknown method is answered like a known one: who is not let in learns nothing.
            return grpc.unary_unary_rpc_method_handler(self._answer(method, _unknown))
        make, behaviour = _kind(handler)
        wrapped = self._stream(method, behaviour) if handler.response_streaming else self._answer(method, behaviour)
        return make(wrapped, handler.request_deserializer, handler.response_serializer)

    def _answer(self, method: str, behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, context: Context) -> Any:
            name = await self._admit(method, context)
            with self._open(context, name) as opened:
                try:
                    return await behaviour(request, context)
                except asyncio.CancelledError:
                    await _end(opened)
                    raise

        return call

    def _stream(self, method: str, behaviour: Callable[..., Any]) -> Callable[..., Awaitable[None]]:
        # Writes instead of yielding: a call that ends while a slow reader blocks it is still in our hands then.
        async def call(request: Any, context: Context) -> None:
            name = await self._admit(method, context)
            with self._open(context, name) as opened:
                try:
                    await _write_all(behaviour(request, context), context)
                except asyncio.CancelledError:
                    await _end(opened)
                    raise

        return call

    async def _admit(self, method: str, context: Context) -> str:
        try:
            return self._identify(context)
        except PufError as error:
            log.warning("refused", call=method, peer=context.peer(), reason=error.message)
            await abort(context, error)
        except Exception as error:
            # Whatever a strange certificate or token did to us: it does not come in.
            log.error("refused", call=method, peer=context.peer(), exc_info=error)
            await abort(context, NotAuthenticated("the caller cannot be identified"))

    @contextmanager
    def _open(self, context: Context, name: str) -> Iterator[_Call]:
        task = asyncio.current_task()
        assert task is not None
        opened = _Call(context, name, task)
        self._calls.add(opened)
        try:
            yield opened
        finally:
            self._calls.discard(opened)


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
