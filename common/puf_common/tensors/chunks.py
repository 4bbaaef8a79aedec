"""Tensor bytes as chunks, both ways. Nothing but the whole payload, in order and with the right digest, passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from puf_common.errors import InvalidUpdate, TransferCorrupted
from puf_common.tensors.digests import DIGEST_BYTES, DigestKind, Payload, hasher
from puf_common.v1 import tensors_pb2 as pb

__all__ = ["CHUNK_BYTES", "Assembler", "Payload", "Piece", "chunks", "pieces"]

# Smaller chunks cost throughput, larger ones memory.
CHUNK_BYTES = 2 << 20


class Piece(NamedTuple):
    """A part of a payload and where it begins: what `Chunk` says, for data that need not be copied into a message."""

    offset: int
    data: Payload


def chunks(payload: Payload, chunk_bytes: int = CHUNK_BYTES) -> Iterator[pb.Chunk]:
    """The payload in messages. A fresh iterator for every attempt: half-read ones cannot be sent again."""
    for piece in pieces(payload, chunk_bytes):
        yield pb.Chunk(offset=piece.offset, data=bytes(piece.data))


def pieces(payload: Payload, chunk_bytes: int = CHUNK_BYTES, begin: int = 0) -> Iterator[Piece]:
    """The payload from `begin` on as views into it."""
    if chunk_bytes <= 0:
        raise ValueError(f"chunk_bytes must be positive, not {chunk_bytes}")
    view = memoryview(payload).cast("B")
    for start in range(begin, len(view), chunk_bytes):
        yield Piece(start, view[start : start + chunk_bytes])


class Assembler:
    """Puts chunks back together in memory allocated once; the digest is computed along the way."""

    def __init__(self, total_bytes: int, digest: bytes, kind: DigestKind = "sha256") -> None:
        if len(digest) != DIGEST_BYTES:
            raise InvalidUpdate(f"the stated digest has {len(digest)} bytes; it must have {DIGEST_BYTES}")
        # Not a bytearray, which would be filled with zeros first.
        self._payload = np.empty(total_bytes, np.uint8)
        self._received = 0
        self._stated = digest
        self._hash = hasher(kind)

    @property
    def received(self) -> int:
        return self._received

    def add(self, chunk: pb.Chunk | Piece) -> None:
        """Takes the next chunk. A gap, an overlap, an empty chunk or one past the end is refused."""
        data, end = chunk.data, chunk.offset + len(chunk.data)
        if chunk.offset != self._received:
            raise InvalidUpdate(
                f"a chunk starts at byte {chunk.offset}, expected was {self._received}",
                expected=self._received,
                offset=chunk.offset,
            )
        if not data:
            raise InvalidUpdate(f"the chunk at byte {chunk.offset} is empty", offset=chunk.offset)
        if end > len(self._payload):
            raise InvalidUpdate(
                f"chunks reach byte {end}, the header announced {len(self._payload)}", announced=len(self._payload)
            )
        # np.copyto and hashing release the interpreter lock; assignment to a slice of a bytearray would hold it.
        np.copyto(self._payload[chunk.offset : end], np.frombuffer(data, np.uint8))
        self._hash.update(data)
        self._received = end

    def finish(self) -> memoryview:
        """The whole payload, the caller's own, once everything has arrived unharmed."""
        if self._received != len(self._payload):
            raise InvalidUpdate(
                f"the stream ended after {self._received} of {len(self._payload)} bytes",
                received=self._received,
                announced=len(self._payload),
            )
        if self._hash.digest() != self._stated:
            raise TransferCorrupted(
                "the bytes do not match their digest",
                stated=self._stated.hex(),
                computed=self._hash.hexdigest(),
            )
        return self._payload.data
