"""A relay between clients and a server. It counts the bytes of each direction, and can be as slow as a given line.

It needs no rights and no kernel module.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Queue

_COUNTED_BLOCK = 1 << 20
_SLOW_BLOCK = 16 << 10
# Blocks that wait on a slow line: a megabyte, as in a small router. A sender that is faster waits.
_WAITING = 64


@dataclass(frozen=True)
class Line:
    """Each direction has a rate in bytes per second. `round_trip` is in seconds."""

    rate: float
    round_trip: float


class Relay:
    """Listens on a free port and forwards connections to `port` of this machine. Use it as a context."""

    def __init__(self, port: int = 0, line: Line | None = None) -> None:
        self.port = port
        self._line = line
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._counting = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.to_server = 0
        self.to_client = 0

    def __enter__(self) -> Relay:
        _started(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                _started(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.port)) as server:
            back = _started(self._forward, server, client, False)
            self._forward(client, server, True)
            back.join()

    def _forward(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        line = _SlowLine(self._line, sink) if self._line else None
        send = sink.sendall if line is None else line.send
        block = memoryview(bytearray(_COUNTED_BLOCK if line is None else _SLOW_BLOCK))
        with suppress(OSError):
            while got := source.recv_into(block):
                with self._counting:
                    self.to_server += got if up else 0
                    self.to_client += 0 if up else got
                send(block[:got])
        if line is not None:
            line.end()
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class _SlowLine:
    """Delivers blocks to `sink` when the line has carried them."""

    def __init__(self, line: Line, sink: socket.socket) -> None:
        self._line = line
        self._sink = sink
        self._free = 0.0
        self._under_way: Queue[tuple[float, bytes]] = Queue(_WAITING)
        self._delivery = _started(self._deliver)

    def send(self, data: memoryview) -> None:
        self._free = max(self._free, time.monotonic()) + len(data) / self._line.rate
        self._under_way.put((self._free + self._line.round_trip / 2, bytes(data)))

    def end(self) -> None:
        """Returns when all blocks are delivered."""
        self._under_way.put((0.0, b""))
        self._delivery.join()

    def _deliver(self) -> None:
        broken = False
        while (block := self._under_way.get())[1]:
            due, data = block
            if not broken:
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    self._sink.sendall(data)
                except OSError:
                    broken = True


def _started(work: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread
