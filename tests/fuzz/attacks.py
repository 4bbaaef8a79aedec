"""Hostile input for a server: messages with random fields, damaged chunk sequences, and arbitrary bytes."""

from __future__ import annotations

import hashlib
import math
import socket
import ssl
from random import Random
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tensors_pb2 as ts
from tests.grpc.raw import Raw, frames, update_bytes

__all__ = ["METHODS", "message", "mutated", "raw_bytes", "stream", "throw"]

METHODS = list(fed.DESCRIPTOR.services_by_name["Federation"].methods)
_NUMBERS = (0, 1, 2, 9, 10, 11, 100, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_FLOATS = (0.0, 1.0, -1.0, -2.0, 0.5, 1e-320, 1e9, 1e300, -1e300, math.inf, -math.inf, math.nan)
_TEXTS = (
    "",
    "a",
    "mallory",
    "anna",
    "t-000000000000",
    "1.x",
    "0." + "f" * 16,
    "9" * 70,
    "票" * 40,
    "\x00\n",
    "x" * 3000,
)
_INTEGERS = {
    FieldDescriptor.TYPE_UINT64: 2**64, FieldDescriptor.TYPE_UINT32: 2**32, FieldDescriptor.TYPE_ENUM: 12,
}  # fmt: skip


def message(rng: Random, kind: type[Message]) -> Message:
    """A message of this kind with random values of the allowed types."""
    made = kind()
    for field in made.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        count = rng.choice((0, 1, 3, 20, 21)) if field.is_repeated else 1
        for _ in range(count):
            _fill(rng, made, field)
    return made


def _fill(rng: Random, made: Message, field: Any) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        value: Any = message(rng, GetMessageClass(field.message_type))
        if field.is_repeated:
            getattr(made, field.name).append(value)
        else:
            getattr(made, field.name).CopyFrom(value)
        return
    if field.type == FieldDescriptor.TYPE_STRING:
        value = rng.choice(_TEXTS)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        value = rng.randbytes(rng.choice((0, 1, 31, 32, 33, 500)))
    elif field.type == FieldDescriptor.TYPE_DOUBLE:
        value = rng.choice(_FLOATS)
    elif field.type == FieldDescriptor.TYPE_BOOL:
        value = rng.random() < 0.5
    else:
        value = rng.choice(_NUMBERS) % _INTEGERS[field.type]
    if field.is_repeated:
        getattr(made, field.name).append(value)
    else:
        setattr(made, field.name, value)


def mutated(rng: Random, data: bytes) -> bytes:
    """The same bytes with a few changes."""
    out = bytearray(data or b"\x00")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out))
        out[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 4))
        out = out or bytearray(b"\xff")
    return bytes(out)


def stream(rng: Random, client: Raw, work: fed.TrainWork) -> list[bytes]:
    """The frames of an update with faults in header, values, order, length or encoding."""
    payload = bytearray(update_bytes(rng.choice((0.1, 0.5, 3e38, 1e30, math.nan))))
    if rng.random() < 0.5:
        at = rng.randrange(len(payload) - 8)
        payload[at : at + 8] = rng.randbytes(8)
    header = client.header(work, bytes(payload))
    if rng.random() < 0.7:
        wrong = message(rng, fed.UpdateHeader)
        fields: list[Any] = list(header.DESCRIPTOR.fields)
        for field in rng.sample(fields, rng.randint(1, 3)):
            if field.message_type:
                getattr(header, field.name).CopyFrom(getattr(wrong, field.name))
            else:
                setattr(header, field.name, getattr(wrong, field.name))
    if rng.random() < 0.3:
        header.digest = hashlib.sha256(bytes(payload)).digest()
    sent = list(frames(header, bytes(payload), rng.choice((1, 7, 16, 60, 1000))))
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(sent))
        damage = rng.randrange(5)
        if damage == 0:
            del sent[at:]
        elif damage == 1:
            sent.insert(at, sent[rng.randrange(len(sent))])
        elif damage == 2:
            sent.insert(at, fed.SubmitUpdateRequest(chunk=ts.Chunk(offset=rng.choice(_NUMBERS), data=rng.randbytes(9))))
        elif damage == 3:
            rng.shuffle(sent)
        else:
            sent.insert(at, fed.SubmitUpdateRequest())
        if not sent:
            break
    encoded = [frame.SerializeToString() for frame in sent]
    if encoded and rng.random() < 0.2:
        at = rng.randrange(len(encoded))
        encoded[at] = mutated(rng, encoded[at])
    return encoded


def throw(channel: Any, method: MethodDescriptor, sent: Any, metadata: Any, seconds: float = 10.0) -> str:
    """The name of the status in the server's answer."""
    kinds: dict[tuple[bool, bool], Any] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
    }
    stub = kinds[method.client_streaming, method.server_streaming](f"/puf.v1.Federation/{method.name}")
    try:
        reply = stub(iter(sent) if method.client_streaming else sent, timeout=seconds, metadata=metadata)
        if method.server_streaming:
            next(iter(reply), None)
            reply.cancel()
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def raw_bytes(rng: Random, port: int, *, tls: bool) -> None:
    """Sends bytes that are no HTTP/2, or begin like it; with `tls` sometimes after an attempted handshake."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    frame = rng.randrange(2**12).to_bytes(3, "big") + rng.randbytes(6)
    junk = rng.choice((rng.randbytes(rng.randrange(1, 300)), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b""))
    sent = rng.choice((junk, preface + junk, preface + frame + junk))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.settimeout(0.5)
        try:
            if tls and rng.random() < 0.5:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                with context.wrap_socket(plain) as wrapped:
                    wrapped.sendall(sent)
                    wrapped.recv(1000)
            else:
                plain.sendall(sent)
                if rng.random() < 0.1:
                    plain.recv(1000)
        except OSError:
            # The server closed the connection, as expected.
            return
