"""Errors are the same after a call: over real gRPC servers, threaded and asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from grpc import aio
from hypothesis import given
from hypothesis import strategies as st

from puf_common import errors
from puf_common.network import status as rpc

# A server does not send a UsageError.
EVERY_ERROR = [getattr(errors, name) for name in errors.__all__ if name not in ("UsageError", "from_status")]


def generic(method: Callable[..., Any]) -> grpc.GenericRpcHandler[bytes, bytes]:
    return grpc.method_handlers_generic_handler("t.T", {"Call": grpc.unary_unary_rpc_method_handler(method)})


@contextmanager
def serving(method: Callable[..., Any]) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1), options=rpc.server_options())
    server.add_generic_rpc_handlers((generic(method),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def call(target: str, method: str = "/t.T/Call") -> errors.PufError:
    with grpc.insecure_channel(target, options=rpc.channel_options(target)) as channel:
        stub: Any = channel.unary_unary(method, lambda message: message, lambda message: message)
        with pytest.raises(grpc.RpcError) as caught:
            stub(b"", timeout=10)
        return rpc.error_from(caught.value, target)


@pytest.mark.parametrize("kind", EVERY_ERROR)
def test_every_error_arrives_as_itself(kind: type[errors.PufError]) -> None:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort_with_status(rpc.status_of(kind("größer than allowed", round=7, tensor="a.b")))

    with serving(answer) as target:
        error = call(target)
    assert type(error) is kind
    assert error.message == "größer than allowed"
    assert error.facts["round"] == "7"
    assert error.facts["tensor"] == "a.b"
    assert rpc.is_transient(error) == (kind is errors.Unavailable)


def test_errors_of_an_asyncio_server_arrive_as_themselves() -> None:
    async def answer(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        await rpc.abort(context, errors.StaleRound("round 3 is over", current=4))

    async def both() -> errors.PufError:
        server = aio.server(options=rpc.server_options())
        server.add_generic_rpc_handlers((generic(answer),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            return await asyncio.to_thread(call, f"127.0.0.1:{port}")
        finally:
            await server.stop(None)

    error = asyncio.run(both())
    assert type(error) is errors.StaleRound
    assert error.facts == {"current": "4"}


def test_a_delay_that_the_server_asks_for_arrives() -> None:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort_with_status(rpc.status_of(errors.TooMuch("full", retry_seconds=2.5)))

    with serving(answer) as target:
        error = call(target)
    assert isinstance(error, errors.TooMuch)
    assert float(error.facts["retry_seconds"]) == 2.5
    assert rpc.is_transient(error)


def test_long_messages_and_facts_still_arrive() -> None:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort_with_status(
            rpc.status_of(errors.NotNow("x" * 100_000, **{f"fact{i}": "y" * 100_000 for i in range(100)}))
        )

    with serving(answer) as target:
        error = call(target)
    assert type(error) is errors.NotNow
    assert error.message.startswith("xxx")


def test_a_plain_status_becomes_an_error_by_its_code() -> None:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too big")

    with serving(answer) as target:
        error = call(target)
    assert type(error) is errors.TooMuch
    assert error.message == "too big"


def test_hostile_details_are_ignored() -> None:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff\xff"),))
        context.abort(grpc.StatusCode.NOT_FOUND, "nothing here")

    with serving(answer) as target:
        error = call(target)
    assert type(error) is errors.NotFound


def test_facts_named_like_parameters_are_dropped() -> None:
    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        error = errors.NotNow("no")
        error.facts = {"message": "m", "self": "s", "round": "1"}
        context.abort_with_status(rpc.status_of(error))

    with serving(answer) as target:
        error = call(target)
    assert error.facts == {"round": "1"}


def test_an_unreachable_server_is_named_with_what_to_check() -> None:
    error = call("127.0.0.1:1")
    assert isinstance(error, errors.Unavailable)
    assert "127.0.0.1:1" in error.message
    assert "puf-server" in error.message
    assert rpc.is_transient(error)


def test_a_server_of_another_program_is_reported_as_such() -> None:
    with serving(lambda request, context: b"") as target:
        error = call(target, "/puf.v1.Federation/Describe")
    assert not rpc.is_transient(error)
    assert "no PUF server" in error.message


def test_a_proxy_is_not_asked_for_a_server_on_this_machine() -> None:
    assert ("grpc.enable_http_proxy", 0) in rpc.channel_options("localhost:7300")
    assert ("grpc.enable_http_proxy", 0) not in rpc.channel_options("puf.example.org:443")


@given(st.text(max_size=5000), st.dictionaries(st.text(max_size=200), st.text(max_size=3000), max_size=20))
def test_every_status_fits_into_a_trailer(message: str, facts: dict[str, str]) -> None:
    for key in ("self", "message", "retry_seconds"):
        facts.pop(key, None)
    status = rpc.status_of(errors.NotFound(message, **facts))
    details = status.details or ""
    size = sum(1 if " " <= c <= "~" and c != "%" else 3 * len(c.encode()) for c in details)
    size += sum(len(key) + len(value) * 4 // 3 for key, value in status.trailing_metadata or ())
    assert size < 8000
    assert len(message) < 100 or len(details) > 50
