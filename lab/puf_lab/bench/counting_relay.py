"""A relay between clients and a server that counts the bytes on the wire in each direction."""

from __future__ import annotations

import socket
import threading


class CountingRelay:
    """Listens on a free port and forwards connections to `target`. Use it as a context."""

    def __init__(self) -> None:
        self.target = ("127.0.0.1", 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._counting = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.to_server = 0
        self.to_client = 0

    def __enter__(self) -> CountingRelay:
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
            server = socket.create_connection(self.target)
            for source, sink, up in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._relay, args=(source, sink, up), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        block = memoryview(bytearray(1 << 20))
        try:
            while got := source.recv_into(block):
                with self._counting:
                    if up:
                        self.to_server += got
                    else:
                        self.to_client += got
                sink.sendall(block[:got])
        except OSError:
            pass
        finally:
            for end in (source, sink):
                end.close()
