"""The interceptor: no call of any kind reaches a method without identity, within limits, and only while accepted."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc import aio

from puf_common.errors import NotAuthenticated
from puf_common.network.status import error_from
from puf_server.admission.identity import ClaimedIdentity, Context
from puf_server.admission.interceptor import AdmissionInterceptor
from puf_server.core.config import Limits

SERVICE = "puf.v1.Federation"
KINDS = {
    "Describe": "unary_unary",
    "Join": "unary_unary",
    "Wait": "unary_unary",
    "Count": "unary_stream",
    "Follow": "unary_stream",
    "Sum": "stream_unary",
    "Echo": "stream_stream",
}


def encoded(message: str | bytes) -> bytes:
    """gRPC turns text into bytes before it calls a serializer."""
    return message if isinstance(message, bytes) else message.encode()


class Methods:
    """One method of every kind. Requests and replies are text; the request "bad" cannot be decoded."""

    def __init__(self) -> None:
        self.decoded: list[str] = []
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        made = {
            name: getattr(grpc, f"{kind}_rpc_method_handler")(
                getattr(self, name.lower()), request_deserializer=self._decode, response_serializer=encoded
            )
            for name, kind in KINDS.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, made)

    def _decode(self, data: bytes) -> str:
        if data == b"bad":
            raise ValueError(data)
        self.decoded.append(data.decode())
        return data.decode()

    async def describe(self, request: str, context: Context) -> str:
        return request

    join = describe

    async def wait(self, request: str, context: Context) -> str:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return ""

    async def count(self, request: str, context: Context) -> AsyncIterator[str]:
        for number in range(3):
            yield str(number)

    async def follow(self, request: str, context: Context) -> AsyncIterator[str]:
        yield "first"
        await self.wait(request, context)

    async def sum(self, requests: AsyncIterator[str], context: Context) -> str:
        return "+".join([request async for request in requests])

    async def echo(self, requests: AsyncIterator[str], context: Context) -> AsyncIterator[str]:
        async for request in requests:
            yield request


class Caller:
    """Calls the methods as one client; without a name it sends no identity."""

    def __init__(self, channel: aio.Channel, name: str = "") -> None:
        self._channel = channel
        self._metadata = (("puf-client", name),) if name else ()

    def start(self, method: str, request: str = "x") -> Any:
        kind = KINDS.get(method, "unary_unary")
        path = method if method.startswith("/") else f"/{SERVICE}/{method}"
        call = getattr(self._channel, kind)(path, request_serializer=encoded, response_deserializer=bytes.decode)
        # A caller that is refused sends no message: one that is sent after the end of the call would be another error.
        requests = _twice(request) if self._metadata else _never()
        return call(requests if kind.startswith("stream") else request, metadata=self._metadata, timeout=20)

    async def answer(self, method: str, request: str = "x") -> str:
        """The reply, the joined replies of a stream, or the name of the status code."""
        try:
            call = self.start(method, request)
            if KINDS.get(method, "").endswith("stream"):
                return " ".join([reply async for reply in call])
            return str(await call)
        except aio.AioRpcError as error:
            return error.code().name


async def _twice(request: str) -> AsyncIterator[str]:
    yield request
    yield request


async def _never() -> AsyncIterator[str]:
    await asyncio.Event().wait()
    yield ""


def scenario(
    test: Callable[[Methods, Callable[[str], Caller], AdmissionInterceptor], Awaitable[None]],
    make: Callable[[], AdmissionInterceptor],
) -> None:
    """Runs the test against a real server on loopback."""

    async def run() -> None:
        methods, interceptor = Methods(), make()
        server = aio.server(interceptors=[interceptor])
        server.add_generic_rpc_handlers((methods.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await test(methods, lambda name: Caller(channel, name), interceptor)
        finally:
            await server.stop(None)

    asyncio.run(run())


class Accepted:
    """Identifies by metadata and refuses the names in `revoked`."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()
        self.threads: set[int] = set()

    def __call__(self, context: Context) -> str:
        name = ClaimedIdentity()(context)
        if name in self.revoked:
            raise NotAuthenticated(f"{name} was revoked")
        return name

    def refresh(self) -> object:
        self.threads.add(threading.get_ident())
        return frozenset(self.revoked)


def test_without_identity_no_method_of_any_kind_sees_or_decodes_a_request() -> None:
    accepted = Accepted()

    async def test(methods: Methods, caller: Callable[[str], Caller], _: AdmissionInterceptor) -> None:
        for method in (*KINDS, "NoSuchMethod", "/grpc.health.v1.Health/Watch"):
            assert await caller("").answer(method) == "UNAUTHENTICATED"
        assert not methods.decoded
        # Only this method needs no identity; the test server does not have it.
        assert await caller("").answer("/grpc.health.v1.Health/Check") == "UNIMPLEMENTED"

    scenario(test, lambda: AdmissionInterceptor(accepted, accepted.refresh))


def test_with_identity_every_kind_of_method_answers() -> None:
    accepted = Accepted()

    async def test(_: Methods, caller: Callable[[str], Caller], __: AdmissionInterceptor) -> None:
        anna = caller("anna")
        assert await anna.answer("Describe") == "x"
        assert await anna.answer("Count") == "0 1 2"
        assert await anna.answer("Sum") == "x+x"
        assert await anna.answer("Echo") == "x x"
        assert await anna.answer("NoSuchMethod") == "UNIMPLEMENTED"

    scenario(test, lambda: AdmissionInterceptor(accepted, accepted.refresh))


def test_without_authentication_reflection_and_unknown_methods_need_no_name() -> None:
    async def test(_: Methods, caller: Callable[[str], Caller], __: AdmissionInterceptor) -> None:
        assert await caller("").answer("NoSuchMethod") == "UNIMPLEMENTED"
        assert await caller("").answer("/grpc.reflection.v1alpha.ServerReflection/Info") == "UNIMPLEMENTED"
        assert await caller("").answer("Describe") == "UNAUTHENTICATED"
        assert await caller("anna").answer("Describe") == "x"

    scenario(test, lambda: AdmissionInterceptor(ClaimedIdentity()))


def test_a_fault_while_identifying_refuses_the_caller() -> None:
    def broken(context: Context) -> str:
        raise RuntimeError("malformed certificate")

    async def test(methods: Methods, caller: Callable[[str], Caller], _: AdmissionInterceptor) -> None:
        assert await caller("anna").answer("Describe") == "UNAUTHENTICATED"
        assert not methods.decoded

    scenario(test, lambda: AdmissionInterceptor(broken))


def test_lists_are_read_outside_the_event_loop_before_every_call() -> None:
    accepted = Accepted()

    async def test(_: Methods, caller: Callable[[str], Caller], interceptor: AdmissionInterceptor) -> None:
        accepted.threads.clear()
        await caller("anna").answer("Describe")
        await interceptor.recheck()
        assert accepted.threads
        assert threading.get_ident() not in accepted.threads
        accepted.revoked.add("anna")
        assert await caller("anna").answer("Describe") == "UNAUTHENTICATED"

    scenario(test, lambda: AdmissionInterceptor(accepted, accepted.refresh))


def test_requests_that_are_too_large_or_not_decodable_are_refused() -> None:
    async def test(_: Methods, caller: Callable[[str], Caller], __: AdmissionInterceptor) -> None:
        anna = caller("anna")
        assert await anna.answer("Describe", "x" * 4097) == "RESOURCE_EXHAUSTED"
        assert await anna.answer("Describe", "bad") == "INVALID_ARGUMENT"
        assert await anna.answer("Describe", "x" * 4096) == "x" * 4096

    scenario(test, lambda: AdmissionInterceptor(ClaimedIdentity(), limits=Limits(request_bytes=4096)))


def test_a_client_has_a_limited_number_of_open_calls() -> None:
    async def test(methods: Methods, caller: Callable[[str], Caller], _: AdmissionInterceptor) -> None:
        open_calls = []
        for _call in range(4):
            methods.waiting.clear()
            open_calls.append(caller("anna").start("Wait"))
            await methods.waiting.wait()
        assert await caller("anna").answer("Describe") == "RESOURCE_EXHAUSTED"
        assert await caller("bert").answer("Describe") == "x"
        for call in open_calls:
            call.cancel()
        await methods.cancelled.wait()

    scenario(test, lambda: AdmissionInterceptor(ClaimedIdentity(), limits=Limits(calls_per_client=4)))


def test_a_client_may_make_a_limited_number_of_changes_per_minute() -> None:
    async def test(_: Methods, caller: Callable[[str], Caller], __: AdmissionInterceptor) -> None:
        anna = caller("anna")
        assert [await anna.answer("Join") for _ in range(4)] == ["x", "x", "x", "RESOURCE_EXHAUSTED"]
        # Calls that change nothing are not limited, and other clients are not affected.
        assert await anna.answer("Describe") == "x"
        assert await caller("bert").answer("Join") == "x"
        with pytest.raises(aio.AioRpcError) as caught:
            await anna.start("Join")
        assert float(error_from(caught.value).facts["retry_seconds"]) > 0

    scenario(test, lambda: AdmissionInterceptor(ClaimedIdentity(), limits=Limits(writes_per_minute=3)))


@pytest.mark.parametrize("method", ["Wait", "Follow"])
def test_open_calls_of_a_revoked_client_end_with_the_reason(method: str) -> None:
    accepted = Accepted()

    async def test(methods: Methods, caller: Callable[[str], Caller], interceptor: AdmissionInterceptor) -> None:
        revoked, other = caller("anna").start(method), caller("bert").start("Echo")
        await methods.waiting.wait()
        await interceptor.recheck()
        assert not methods.cancelled.is_set()
        accepted.revoked.add("anna")
        await interceptor.recheck()
        with pytest.raises(aio.AioRpcError, match="anna was revoked") as caught:
            await revoked if method == "Wait" else [reply async for reply in revoked]
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert [reply async for reply in other] == ["x", "x"]

    scenario(test, lambda: AdmissionInterceptor(accepted, accepted.refresh))


def test_a_call_that_its_caller_cancels_is_cancelled_in_the_method() -> None:
    async def test(methods: Methods, caller: Callable[[str], Caller], _: AdmissionInterceptor) -> None:
        call = caller("anna").start("Wait")
        await methods.waiting.wait()
        call.cancel()
        await methods.cancelled.wait()

    scenario(test, lambda: AdmissionInterceptor(ClaimedIdentity()))


def test_refused_calls_are_logged_within_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    async def test(_: Methods, caller: Callable[[str], Caller], __: AdmissionInterceptor) -> None:
        for _call in range(6):
            assert await caller("").answer("Describe") == "UNAUTHENTICATED"

    with caplog.at_level(logging.WARNING):
        scenario(test, lambda: AdmissionInterceptor(ClaimedIdentity(), limits=Limits(refusals_per_minute=2)))
    assert sum("call refused" in record.getMessage() for record in caplog.records) == 2
