"""Errors as gRPC statuses, in both directions, and the options of every channel and server.

A status has a google.rpc.ErrorInfo (domain "puf", the reason of the error, its facts): a client in any language can
tell a stale round from a wrong fingerprint without parsing sentences. A call that may be repeated has a RetryInfo, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from puf_common.errors import PufError, Unavailable, from_status
from puf_common.network.addresses import is_loopback
from puf_common.tensors.chunks import CHUNK_BYTES

if TYPE_CHECKING:
    from grpc import aio

DOMAIN = "puf"
# The name of the caller, if it has no client certificate.
IDENTITY_KEY = "puf-client"
# The client's token, over TLS only.
TOKEN_KEY = "authorization"  # noqa: S105  # a key, not a secret
# Enough for a chunk and its framing, and for the manifest of a model with ten thousand tensors.
MAX_MESSAGE_BYTES = 2 * CHUNK_BYTES
# Sent with the value "viewer": the caller of the operator port gives up its right to change anything.
ROLE_KEY = "puf-role"
RETRY_SECONDS = 1.0

_KEEPALIVE_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 15_000
# Statuses are sent in HTTP/2 trailers, which peers limit to 8 KiB. A trailer has the message twice: in base64 among the
# details, and percent-encoded, which takes three bytes for every byte that is not plain ASCII.
_MESSAGE_BYTES = 1200
_FACT_BYTES = 200
_FACTS = 8
_CODES = {code.name: code for code in grpc.StatusCode}

Options = list[tuple[str, int]]


def server_options(*, shares_port: bool = False) -> Options:
    """Options of every server. The ping rule must allow the clients' keep-alive; otherwise idle clients are disconnected."""
    return [
        *_both_sides(),
        ("grpc.http2.lookahead_bytes", CHUNK_BYTES // 8),
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 3),
        # A second server on the same port must fail instead of sharing it, unless it serves the same federation.
        ("grpc.so_reuseport", int(shares_port)),
    ]


def channel_options(target: str) -> Options:
    """Options of every channel. gRPC repeats no calls; the caller does. A server on this machine needs no proxy."""
    return [
        *_both_sides(),
        # Room for a whole chunk: fewer wake-ups. A server needs as much memory for each upload that waits.
        ("grpc.http2.lookahead_bytes", CHUNK_BYTES),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        # One connection per channel: two clients in one process must not share a flow-control window.
        ("grpc.use_local_subchannel_pool", 1),
        *([("grpc.enable_http_proxy", 0)] if is_loopback(target) else []),
    ]


def _both_sides() -> Options:
    return [
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Bandwidth probing doubles the memory of a server with many uploads and makes nothing faster.
        ("grpc.http2.bdp_probe", 0),
        # One frame per chunk: fewer copies.
        ("grpc.http2.max_frame_size", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ]


def status_of(error: PufError) -> grpc.Status:
    """The status of an error with its details."""
    facts = {_cut(key, 40): _cut(value, _FACT_BYTES) for key, value in list(error.facts.items())[:_FACTS]}
    details = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=facts)]
    packed = []
    for detail in [*details, *_retry_info(error)]:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    code = _CODES[error.status]
    number: int = code.value[0]
    return rpc_status.to_status(
        status_pb2.Status(code=number, message=_cut(error.message, _MESSAGE_BYTES), details=packed)
    )


def _cut(text: str, most: int) -> str:
    """The beginning of a text, at most `most` bytes in a trailer."""
    taken = 0
    for at, character in enumerate(text):
        taken += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if taken > most:
            return f"{text[: max(0, at - 3)]}..."
    return text.encode(errors="replace").decode()


def _retry_info(error: PufError) -> list[error_details_pb2.RetryInfo]:
    seconds = error.facts.get("retry_seconds", str(RETRY_SECONDS) if isinstance(error, Unavailable) else None)
    if seconds is None:
        return []
    info = error_details_pb2.RetryInfo()
    info.retry_delay.FromNanoseconds(round(float(seconds) * 1e9))
    return [info]


async def abort(context: aio.ServicerContext[Any, Any], error: PufError) -> NoReturn:
    """Ends a call of a grpc.aio server with this error."""
    status = status_of(error)
    await context.abort(status.code, status.details, tuple(status.trailing_metadata or ()))


def error_from(call: grpc.RpcError, target: str = "") -> PufError:
    """The error of a failed call. The message names `target` if no server answers there.

    A delay that the server asked for becomes the fact "retry_seconds".
    """
    code = call.code()
    message = call.details() or code.name.lower().replace("_", " ")
    info, delay = _details(call)
    # The first two are parameters of the constructor. A delay is taken from its own message, where it is a number.
    facts = {key: value for key, value in info.metadata.items() if key not in ("self", "message", "retry_seconds")}
    if delay is not None:
        facts["retry_seconds"] = f"{delay:g}"
    if info.domain != DOMAIN and code is grpc.StatusCode.CANCELLED:
        # This side did not cancel: a server that stops cancels the calls that it has not answered.
        return Unavailable(f"the server at {target or 'the other end'} cancelled the call", **facts)
    if info.domain != DOMAIN:
        return from_status(code.name, "", _for_people(code, message, target), facts)
    return from_status(code.name, info.reason, message, facts)


def is_transient(error: PufError) -> bool:
    """Whether the same call may succeed later: no answer in time, or the server asked to try again."""
    return isinstance(error, Unavailable) or "retry_seconds" in error.facts


def _details(call: grpc.RpcError) -> tuple[error_details_pb2.ErrorInfo, float | None]:
    """Details and delay of the status; empty if they are absent or unreadable."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    delay: float | None = None
    try:
        status = rpc_status.from_call(call)  # type: ignore[arg-type]  # an RpcError of a call is a Call as well
        for detail in status.details if status is not None else ():
            detail.Unpack(info)
            if detail.Unpack(retry):
                delay = retry.retry_delay.ToNanoseconds() / 1e9
    except (ValueError, DecodeError):
        return error_details_pb2.ErrorInfo(), None
    return info, delay


def _for_people(code: grpc.StatusCode, message: str, target: str) -> str:
    """A sentence for an error of gRPC itself, whose texts are about subchannels and errno."""
    where = target or "the server's address"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"the program that answers at {where} is no PUF server, or has another version ({message})"
    if code is grpc.StatusCode.INTERNAL and "deserializing" in message:
        return f"the program that answers at {where} sent data that is no answer of a PUF server"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"the server at {where} did not answer in time"
    if code is not grpc.StatusCode.UNAVAILABLE:
        return message
    lower = message.lower()
    for text, sentence in _CAUSES.items():
        if text in lower:
            return f"{sentence.format(where=where)} ({_last_error(message)})"
    return f"the server at {where} cannot be reached ({_last_error(message)})"


_CAUSES: Mapping[str, str] = {
    "connection refused": "no server answers at {where}; is puf-server running there, and is the port right?",
    "name resolution": "the host name in {where} is unknown; check --server",
    "dns": "the host name in {where} is unknown; check --server",
    "handshake": "the TLS handshake with {where} failed: certificates differ, or one side runs without TLS",
    "wrong_version_number": "the TLS handshake with {where} failed: one side runs without TLS",
}


def _last_error(message: str) -> str:
    return message.rsplit("last error: ", 1)[-1].removeprefix("UNKNOWN: ").removeprefix("UNAVAILABLE: ")[:200]
