"""The bytes of a round over plain sockets: the limit that a round is compared with. It needs only the standard library.

As in a round, each client receives the whole model into its memory and sends a whole update from its memory. The server
sends one model to all clients and receives into one block that is used again. With `hot` the clients use one block too:
these bytes never leave the processor's cache, so no client could train with them.
"""

from __future__ import annotations

import socket
import sys

_BLOCK = 1 << 20


def serve(connection: socket.socket, model: memoryview) -> None:
    """One client's round: the client receives the model, then sends as many bytes."""
    with connection:
        connection.sendall(model)
        block, left = bytearray(_BLOCK), len(model)
        while left:
            left -= _some(connection, memoryview(block)[: min(left, _BLOCK)])


def fetch_and_send(port: int, payload: int, *, hot: bool = False) -> None:
    # Filled, so that the pages are allocated before the measurement.
    model = memoryview(bytearray(b"m" * (_BLOCK if hot else payload)))
    update = memoryview(b"u" * (_BLOCK if hot else payload))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        at = 0
        while at < payload:
            begin = at % len(model)
            at += _some(connection, model[begin : begin + min(_BLOCK, payload - at)])
        at = 0
        while at < payload:
            begin = at % len(update)
            part = update[begin : begin + min(_BLOCK, payload - at)]
            connection.sendall(part)
            at += len(part)


def _some(connection: socket.socket, out: memoryview) -> int:
    got = connection.recv_into(out)
    if not got:
        raise ConnectionError("the peer closed the connection")
    return got


if __name__ == "__main__":
    fetch_and_send(int(sys.argv[1]), int(sys.argv[2]), hot=sys.argv[3:] == ["hot"])
