"""The same bytes over plain sockets: the limit that a round is compared with. Imports nothing but the standard library.

As in a round, each client gets the whole model into its memory and then sends a whole update out of its memory, and the
server sends one model to everybody. What the server receives it only looks away from: one block, used again. `hot` moves
one block to and fro on the clients, too: bytes that never leave the processor's cache, and nobody could train with.
"""

from __future__ import annotations

import socket
import sys

__all__ = ["fetch_and_send", "serve"]

_BLOCK = 1 << 20


def serve(connection: socket.socket, model: memoryview) -> None:
    """One client's round: it gets the bytes, then sends as many."""
    with connection:
        connection.sendall(model)
        block, left = bytearray(_BLOCK), len(model)
        while left:
            left -= _some(connection, memoryview(block)[: min(left, _BLOCK)])


def fetch_and_send(port: int, payload: int, *, hot: bool = False) -> None:
    # Filled, so that the pages are there: what the memory costs is no matter of the wire.
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
            piece = update[begin : begin + min(_BLOCK, payload - at)]
            connection.sendall(piece)
            at += len(piece)


def _some(connection: socket.socket, out: memoryview) -> int:
    got = connection.recv_into(out)
    if not got:
        raise ConnectionError("the other side has hung up")
    return got


if __name__ == "__main__":
    fetch_and_send(int(sys.argv[1]), int(sys.argv[2]), hot=sys.argv[3:] == ["hot"])
