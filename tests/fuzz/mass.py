"""Mutated messages by the million: many calls at a time on every method of a real server process, and HTTP/2 floods."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import operator_pb2 as op
from tests.fuzz.attacks import message, mutated
from tests.running import metadata

__all__ = ["Mass", "floods", "http_requests"]

# `Stop` would do what it says.
_METHODS = [
    (service.full_name, method)
    for service in (fed.DESCRIPTOR.services_by_name["Federation"], op.DESCRIPTOR.services_by_name["Operator"])
    for method in service.methods
    if method.name != "Stop"
]
_AT_ONCE = 64
_SECONDS = 30.0
# Templates of each method. Mutations of bytes are far cheaper than new messages.
_TEMPLATES = 40


class Mass:
    """Two connections to a server: as the client "mallory", and as the operator."""

    def __init__(self, port: int, operator: int, seed: int) -> None:
        self._random = Random(seed)
        self._channels = {
            "puf.v1.Federation": grpc.insecure_channel(f"127.0.0.1:{port}"),
            "puf.v1.Operator": grpc.insecure_channel(f"127.0.0.1:{operator}"),
        }
        self._slots = threading.Semaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self.answers: Counter[str] = Counter()
        self.by_method: Counter[str] = Counter()
        # Calls with an answer that would be a fault of the server.
        self.wrong: list[str] = []
        self._templates = {
            (service, method.name): [
                message(self._random, GetMessageClass(method.input_type)).SerializeToString() for _ in range(_TEMPLATES)
            ]
            for service, method in _METHODS
        }

    def send(self, count: int) -> None:
        """Sends so many mutated messages and waits for all answers."""
        for _ in range(count):
            service, method = self._random.choice(_METHODS)
            self._slots.acquire()
            self._call(service, method, self._payload(service, method))
        for _ in range(_AT_ONCE):
            self._slots.acquire()
        for _ in range(_AT_ONCE):
            self._slots.release()

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _payload(self, service: str, method: Any) -> bytes:
        if method.name in ("WaitForWork", "FollowTicket", "FollowAudit") and self._random.random() < 0.9:
            # A valid call would wait. Most are for sessions and tickets that do not exist.
            if method.name == "WaitForWork":
                return fed.WaitForWorkRequest(session=self._random.randbytes(6).hex()).SerializeToString()
            return self._random.randbytes(9)
        data = self._random.choice(self._templates[service, method.name])
        return mutated(self._random, data)

    def _call(self, service: str, method: Any, payload: bytes) -> None:
        channel: Any = self._channels[service]
        path = f"/{service}/{method.name}"
        known = metadata("mallory") if self._random.random() < 0.95 else ()
        options = {"timeout": _SECONDS, "metadata": known if service.endswith("Federation") else ()}
        self.by_method[method.name] += 1
        if method.server_streaming:
            stream = channel.unary_stream(path)(payload, **options)
            self._ended(stream, f"{method.name} {payload.hex()}")
            stream.cancel()
        elif method.client_streaming:
            frames = [payload, *(mutated(self._random, payload) for _ in range(self._random.randrange(3)))]
            self._later(channel.stream_unary(path).future(iter(frames), **options), method.name, payload)
        else:
            self._later(channel.unary_unary(path).future(payload, **options), method.name, payload)

    def _later(self, call: Any, name: str, payload: bytes) -> None:
        call.add_done_callback(lambda done: self._note(done.code().name, f"{name} {done.details()} {payload.hex()}"))

    def _ended(self, stream: Any, sent: str) -> None:
        """Reads the first answer of a stream."""
        try:
            next(iter(stream), None)
            self._note("OK")
        except grpc.RpcError as error:
            self._note(error.code().name, f"{sent} {error.details()}")

    def _note(self, answer: str, told: str = "") -> None:
        with self._lock:
            self.answers[answer] += 1
            if answer in ("INTERNAL", "UNKNOWN"):
                self.wrong.append(told)
        self._slots.release()


_LINES = (
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: keep-alive\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nabc",
    b"GET /../../etc/passwd HTTP/1.0\r\nHost: \xff\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
    b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
)


def http_requests(random: Random, port: int, count: int) -> None:
    """Sends mutated requests, each on its own connection, without waiting for all of the answer."""
    for _ in range(count):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
                line.sendall(mutated(random, random.choice(_LINES)))
                if random.random() < 0.5:
                    line.shutdown(socket.SHUT_WR)
                    line.recv(4000)
        except OSError:
            # The server closed the connection, as expected.
            continue


# -- HTTP/2 frames -----------------------------------------------------------------------------------------------------

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _header_block(path: bytes) -> bytes:
    """POST, http, a path, te: trailers, content-type; literals without an index."""

    def literal(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    pairs = ((b":path", path), (b":authority", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc"))
    return b"\x83\x86" + b"".join(literal(*pair) for pair in pairs)


def _frames(random: Random) -> Iterator[bytes]:
    """One flood, frame by frame, without end."""
    kind = random.randrange(6)
    block = _header_block(b"/puf.v1.Federation/Describe")
    stream = 1
    while True:
        if kind == 0:
            yield _frame(_HEADERS, 4, stream, block) + _frame(_RESET, 0, stream, b"\x00\x00\x00\x08")
        elif kind == 1:
            yield _frame(_PING, 0, 0, random.randbytes(8))
        elif kind == 2:
            yield _frame(_SETTINGS, 0, 0, struct.pack(">HI", random.randrange(1, 7), random.randrange(2**31)))
        elif kind == 3:
            yield _frame(
                _HEADERS if stream == 1 else _CONTINUATION, 0, 1, block if stream == 1 else random.randbytes(900)
            )
        elif kind == 4:
            yield _frame(_WINDOW, 0, 0, struct.pack(">I", random.randrange(2**31)))
        else:
            yield _frame(random.randrange(12), random.randrange(256), random.randrange(20), random.randbytes(30))
        stream += 2


def floods(random: Random, port: int, frames: int) -> int:
    """Sends floods of frames on connections that the server may close. Returns how many frames it took."""
    sent = 0
    while sent < frames:
        source = _frames(random)
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
                line.sendall(_PREFACE + _frame(_SETTINGS, 0, 0))
                line.settimeout(2.0)
                for _ in range(50):
                    line.sendall(b"".join(next(source) for _ in range(100)))
                    sent += 100
        except OSError:
            sent += 1
    return sent
