"""The first code that sees a call: every method of every service on a listener, of all four kinds.

A call is identified first, then counted against its caller's limits, and only then its bytes are decoded. Long calls are
identified again while they last: a call ends when its caller is revoked or its credential expires.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from puf_common.errors import InvalidArgument, NotAuthenticated, PufError, TooMuch
from puf_common.logging import get_logger
from puf_common.network.certificates import Role
from puf_common.network.status import abort
from puf_server.admission.identity import Context, Identify
from puf_server.admission.rate_limit import RateLimit, RateLimits
from puf_server.admission.roles import require_allowed
from puf_server.core.config import Limits

# Reports only whether the server serves. Probes of load balancers have no credentials.
HEALTH = "/grpc.health.v1.Health/Check"

_EXPIRY_SECONDS = 5.0
# Calls that store something permanently, at least an entry of the audit log.
_WRITES = frozenset(
    f"/puf.v1.Federation/{name}"
    for name in (
        "Join", "DeclineWork", "Leave", "FileUnlearning", "WithdrawUnlearning", "ReportMeasurement", "GetReceipt",
        "PresentReceipt",
    )
)  # fmt: skip
# A receipt lists every withdrawn model and every export, so it may exceed the limit for requests.
_LARGE = frozenset({"/puf.v1.Federation/PresentReceipt"})

log = get_logger(__name__)


class _OpenCall:
    """A call under way. `refused` is the error that ends it."""

    def __init__(self, context: Context, name: str, task: asyncio.Task[Any]) -> None:
        self.context = context
        self.name = name
        self.task = task
        self.refused: PufError | None = None


class AdmissionInterceptor(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Identifies and limits the callers of one listener."""

    def __init__(
        self,
        identify: Identify,
        refresh: Callable[[], object] | None = None,
        limits: Limits | None = None,
        role: Callable[[Context], Role] | None = None,
    ) -> None:
        """`refresh` reads changed lists of tokens and revocations; its result differs after a change. It may block.

        Without it callers are not authenticated. Health, reflection and unknown methods then need no name. `role` tells
        operators and viewers apart; without it every identified caller may call every method.
        """
        self._identify = identify
        self._role = role
        self._refresh = refresh
        self._limits = limits or Limits()
        self._writes = RateLimits(self._limits.writes_per_minute)
        self._log_limit = RateLimit(self._limits.refusals_per_minute)
        self._not_logged = 0
        self._calls: set[_OpenCall] = set()
        self._calls_of: Counter[str] = Counter()
        self._seen = refresh() if refresh else None
        self._checked_at = time.monotonic()

    async def recheck(self) -> None:
        """Ends calls whose caller is no longer accepted.

        To be called often. Open calls are identified again after a change of the lists, and every few seconds because
        certificates and tokens expire.
        """
        if self._refresh is None:
            return
        seen, now = await asyncio.to_thread(self._refresh), time.monotonic()
        if seen == self._seen and now - self._checked_at < _EXPIRY_SECONDS:
            return
        self._seen, self._checked_at = seen, now
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
        """The method's handler, with admission before it."""
        handler: Any = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None and self._refresh is None:
            return None
        if handler is None:
            # A caller that is not accepted gets the same answer for known and unknown methods.
            return grpc.unary_unary_rpc_method_handler(self._admitted(method, _unknown, lambda data: data))
        kind = "_".join("stream" if s else "unary" for s in (handler.request_streaming, handler.response_streaming))
        call = self._admitted(
            method, getattr(handler, kind), self._decoder(method, handler), handler.response_streaming
        )
        # No deserializer: gRPC passes bytes, which are decoded only after admission.
        return getattr(grpc, f"{kind}_rpc_method_handler")(call, None, handler.response_serializer)

    def _decoder(self, method: str, handler: Any) -> Callable[[Any], Any]:
        """Decodes the request, or each message of a stream of requests as it arrives."""
        if handler.request_deserializer is None:
            # The method decodes its frames itself, which is faster.
            return lambda messages: messages
        most = None if handler.request_streaming or method in _LARGE else self._limits.request_bytes

        def one(data: bytes) -> Any:
            if most is not None and len(data) > most:
                raise TooMuch(f"the request has {len(data)} bytes; the limit is {most}", limit=most)
            try:
                return handler.request_deserializer(data)
            except (DecodeError, ValueError):
                raise InvalidArgument("the request cannot be decoded: it is not a message of this contract") from None

        async def each(messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
            async for data in messages:
                yield one(data)

        return each if handler.request_streaming else one

    def _admitted(
        self, method: str, behaviour: Callable[..., Any], decode: Callable[[Any], Any], streaming: bool = False
    ) -> Callable[..., Awaitable[Any]]:
        """The method after admission. A streaming one writes its replies: only then a blocked call can be cancelled."""

        async def call(request: Any, context: Context) -> Any:
            name = await self._admit(method, context)
            with self._open(context, name) as opened:
                try:
                    reply = behaviour(await self._request(method, name, request, decode, context), context)
                    return await (_write_all(reply, context) if streaming else reply)
                except asyncio.CancelledError:
                    if opened.refused is not None:
                        # Cancelled by `recheck`, not by the caller.
                        opened.task.uncancel()
                        await abort(context, opened.refused)
                    raise

        return call

    async def _admit(self, method: str, context: Context) -> str:
        """The caller's name; empty for methods that need none. Aborts the call of a caller that is not accepted."""
        if method == HEALTH or (self._refresh is None and method.startswith("/grpc.")):
            return ""
        try:
            if self._refresh is not None:
                await asyncio.to_thread(self._refresh)
            name = self._identify(context)
            if self._role is not None:
                require_allowed(method, self._role(context))
            return name
        except PufError as error:
            self._log_refusal(call=method, peer=context.peer(), reason=error.message)
            await abort(context, error)
        except Exception as error:
            # A malformed certificate or token must not be accepted because checking it failed.
            self._log_refusal(call=method, peer=context.peer(), reason=f"{type(error).__name__}: {str(error)[:200]}")
            await abort(context, NotAuthenticated("the caller cannot be identified"))

    async def _request(
        self, method: str, name: str, request: Any, decode: Callable[[Any], Any], context: Context
    ) -> Any:
        """The decoded request of an admitted caller. Aborts the call if it exceeds a limit or cannot be decoded."""
        limits = self._limits
        try:
            if name and self._calls_of[name] > limits.calls_per_client:
                raise TooMuch(f"{name} already has {limits.calls_per_client} open calls", limit=limits.calls_per_client)
            if name and method in _WRITES and not (rate := self._writes.of(name)).take():
                raise TooMuch(
                    f"{name} has made {limits.writes_per_minute:g} changes within a minute",
                    limit=limits.writes_per_minute,
                    retry_seconds=rate.retry_seconds,
                )
            return decode(request)
        except PufError as error:
            self._log_refusal(call=method, client=name, peer=context.peer(), reason=error.message)
            await abort(context, error)

    def _log_refusal(self, **facts: str) -> None:
        """Logs a refused call, at most `refusals_per_minute`. The next line counts those that were not logged."""
        if not self._log_limit.take():
            self._not_logged += 1
            return
        if self._not_logged:
            facts["not_logged"] = str(self._not_logged)
            self._not_logged = 0
        log.warning("call refused", **facts)

    @contextmanager
    def _open(self, context: Context, name: str) -> Iterator[_OpenCall]:
        task = asyncio.current_task()
        assert task is not None
        opened = _OpenCall(context, name, task)
        self._calls.add(opened)
        self._calls_of[name] += 1
        try:
            yield opened
        finally:
            self._calls.discard(opened)
            self._calls_of[name] -= 1
            if not self._calls_of[name]:
                del self._calls_of[name]


async def _write_all(replies: Any, context: Context) -> None:
    if inspect.isawaitable(replies):
        # The method writes its replies itself.
        await replies
        return
    try:
        async for reply in replies:
            await context.write(reply)
    finally:
        await replies.aclose()


async def _unknown(request: Any, context: Context) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
