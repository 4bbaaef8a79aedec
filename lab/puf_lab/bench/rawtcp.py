"""Bytes over plain sockets: the limit that a round is compared with. Imports nothing but the standard library."""

from __future__ import annotations

import socket
import sys

__all__ = ["fetch_and_send", "serve"]

_BLOCK = 1 << 20


def serve(connection: socket.socket, payload: int) -> None:
    """One client's round: it gets the bytes, then sends as many."""
    with connection:
        _send(connection, payload)
        _receive(connection, payload)


def fetch_and_send(port: int, payload: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        _receive(connection, payload)
        _send(connection, payload)


def _send(connection: socket.socket, count: int) -> None:
    block = memoryview(bytes(_BLOCK))
    while count:
        connection.sendall(block[: min(count, _BLOCK)])
        count -= min(count, _BLOCK)


def _receive(connection: socket.socket, count: int) -> None:
    block = bytearray(_BLOCK)
    while count:
        got = connection.recv_into(block, min(count, _BLOCK))
        if not got:
            raise ConnectionError(f"{count} bytes are missing")
        count -= got


if __name__ == "__main__":
    fetch_and_send(int(sys.argv[1]), int(sys.argv[2]))
