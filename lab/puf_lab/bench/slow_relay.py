"""A relay that is as slow as a given line: each direction has a rate and a delay. It needs no rights and no kernel module."""

from __future__ import annotations

import socket
import threading
import time
from queue import Queue

_BLOCK = 16 << 10
# Blocks that wait on the line: a megabyte, as in a small router. A sender that is faster waits.
_WAITING = 64


class SlowRelay:
    """Listens on a free port and forwards connections to a port of this machine. Use it as a context.

    `rate` is in bytes per second for each direction, `round_trip` in seconds.
    """

    def __init__(self, port: int, rate: float, round_trip: float) -> None:
        self._port = port
        self._rate = rate
        self._delay = round_trip / 2
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> SlowRelay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            for source, sink in ((client, server), (server, client)):
                line: Queue[tuple[float, bytes]] = Queue(_WAITING)
                threading.Thread(target=self._read, args=(source, line), daemon=True).start()
                threading.Thread(target=self._write, args=(sink, line), daemon=True).start()

    def _read(self, source: socket.socket, line: Queue[tuple[float, bytes]]) -> None:
        """Gives each block the time at which the line has carried it."""
        free = 0.0
        try:
            while data := source.recv(_BLOCK):
                free = max(free, time.monotonic()) + len(data) / self._rate
                line.put((free + self._delay, data))
        except OSError:
            pass
        line.put((0.0, b""))

    def _write(self, sink: socket.socket, line: Queue[tuple[float, bytes]]) -> None:
        try:
            while True:
                due, data = line.get()
                if not data:
                    break
                time.sleep(max(0.0, due - time.monotonic()))
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()
