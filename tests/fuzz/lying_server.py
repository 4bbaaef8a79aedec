"""A server that lies: it passes every call on to a real server and changes the answers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from puf_common.network.status import DOMAIN, server_options
from puf_common.v1 import federation_pb2 as fed

__all__ = ["Lie", "lying", "refusal"]

_METHODS = {m.name: m for m in fed.DESCRIPTOR.services_by_name["Federation"].methods}
# Methods that end with a lie answer so often, then order the client to leave: a test ends.
_WAITS = 12
_SECONDS = 0.2


@dataclass
class Lie:
    """How the answers of one method are changed. Several may be given; each applies to its own method."""

    method: str
    # Changes a message in place, or returns other bytes.
    change: Callable[[Any], bytes | None] | None = None
    # Changes the frames of a stream.
    frames: Callable[[Iterator[bytes]], Iterator[bytes]] | None = None
    # A status instead of an answer.
    status: Any = None
    # The number of calls that are answered with a lie; then the truth.
    times: int = 1_000_000
    told: int = 0

    def due(self) -> bool:
        self.told += 1
        return self.told <= self.times


def refusal(code: grpc.StatusCode, text: str, /, *, reason: str = "", delay: int | None = None, **facts: str) -> Any:
    """A status with details that this server chose freely."""
    status = status_pb2.Status(code=code.value[0], message=text)
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=facts))
    if delay is not None:
        info = error_details_pb2.RetryInfo()
        info.retry_delay.seconds = delay
        status.details.add().Pack(info)
    return rpc_status.to_status(status)


@dataclass
class _Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    channel: Any
    lies: dict[str, Lie]
    calls: Counter[str] = field(default_factory=Counter)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = _METHODS.get(details.method.rpartition("/")[2])
        if method is None:
            return None
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(
                lambda sent, context: self._stream(details.method, method, sent, context)
            )
        if method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(
                lambda sent, context: self._answer(details.method, method, sent, context)
            )
        return grpc.unary_unary_rpc_method_handler(
            lambda sent, context: self._answer(details.method, method, sent, context)
        )

    def _lie(self, name: str, context: grpc.ServicerContext) -> Lie | None:
        lie = self.lies.get(name)
        if lie is None or not lie.due():
            return None
        if lie.status is not None:
            context.abort_with_status(lie.status)
        return lie

    def _answer(self, path: str, method: Any, sent: Any, context: grpc.ServicerContext) -> bytes:
        self.calls[method.name] += 1
        if method.name == "WaitForWork" and self.calls["WaitForWork"] > _WAITS:
            order = fed.LeaveOrder(reason=fed.LeaveOrder.REASON_STOPPED, message="the lies end")
            return fed.WaitForWorkReply(leave=order).SerializeToString()
        lie = self._lie(method.name, context)
        if method.name == "WaitForWork":
            # Without work the real server waits; here it answers soon.
            asked = fed.WaitForWorkRequest.FromString(sent)
            asked.timeout_seconds = min(asked.timeout_seconds, _SECONDS)
            sent = asked.SerializeToString()
        call: Any = self.channel.stream_unary if method.client_streaming else self.channel.unary_unary
        if method.name == "GetReceipt" and lie is not None:
            # The real server has none.
            return _changed(lie, GetMessageClass(method.output_type), b"")
        data: bytes = self._told(lambda: call(path)(sent, metadata=_identity(context), timeout=30), context)
        return data if lie is None else _changed(lie, GetMessageClass(method.output_type), data)

    def _stream(self, path: str, method: Any, sent: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.calls[method.name] += 1
        lie = self._lie(method.name, context)
        frames = iter(self.channel.unary_stream(path)(sent, metadata=_identity(context), timeout=30))
        if lie is not None and lie.frames is not None:
            yield from lie.frames(frames)
            return
        while frame := self._told(lambda: next(frames, b""), context):
            yield frame if lie is None else _changed(lie, GetMessageClass(method.output_type), frame)

    def _told(self, call: Callable[[], bytes], context: grpc.ServicerContext) -> bytes:
        try:
            return call()
        except grpc.RpcError as error:
            context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))  # type: ignore[arg-type]
            context.abort(error.code(), error.details() or "")
            raise AssertionError from error


def _changed(lie: Lie, kind: type[Message], data: bytes) -> bytes:
    message = kind.FromString(data)
    other = lie.change(message) if lie.change is not None else None
    return message.SerializeToString() if other is None else other


def _identity(context: grpc.ServicerContext) -> tuple[tuple[str, str], ...]:
    return tuple((k, v) for k, v in context.invocation_metadata() if k.startswith("puf-"))  # type: ignore[misc]


@contextlib.contextmanager
def lying(port: int, *lies: Lie) -> Iterator[tuple[int, Counter[str]]]:
    """A server on a free port in front of the real one at `port`, and the number of calls by method."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=server_options()) as channel:
        handler = _Handler(channel, {lie.method: lie for lie in lies})
        with ThreadPoolExecutor(8) as pool:
            server = grpc.server(pool, handlers=[handler], options=server_options())
            mine = server.add_insecure_port("127.0.0.1:0")
            server.start()
            try:
                yield mine, handler.calls
            finally:
                server.stop(0).wait()
