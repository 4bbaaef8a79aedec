"""Tensor bytes as chunks, in both directions. A receiver accepts only the whole payload, in order and with its digest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from puf_common.errors import CutShort, InvalidUpdate, TooMuch, TransferCorrupted
from puf_common.tensors.digests import DIGEST_BYTES, DigestKind, Payload, hasher
from puf_common.v1 import tensors_pb2 as pb

__all__ = ["CHUNK_BYTES", "Assembler", "ChunkSequence", "ChunkView", "Payload", "check_offset", "chunk_views", "chunks"]

# Smaller chunks cost throughput, larger ones memory.
CHUNK_BYTES = 2 << 20


class ChunkView(NamedTuple):
    """A part of a payload and its offset: the content of a `Chunk` without a copy of the data."""

    offset: int
    data: Payload


def chunks(payload: Payload, chunk_bytes: int = CHUNK_BYTES) -> Iterator[pb.Chunk]:
    """The payload as messages. Take a new iterator for every attempt: a partly consumed one cannot be sent again."""
    for view in chunk_views(payload, chunk_bytes):
        yield pb.Chunk(offset=view.offset, data=bytes(view.data))


def chunk_views(payload: Payload, chunk_bytes: int = CHUNK_BYTES, begin: int = 0) -> Iterator[ChunkView]:
    """The payload from `begin` on, without copies."""
    if chunk_bytes <= 0:
        raise ValueError(f"chunk_bytes must be positive, not {chunk_bytes}")
    whole = memoryview(payload).cast("B")
    for start in range(begin, len(whole), chunk_bytes):
        yield ChunkView(start, whole[start : start + chunk_bytes])


def check_offset(chunk: pb.Chunk | ChunkView, expected: int) -> None:
    """Refuses a chunk that does not begin where the previous one ended."""
    if chunk.offset != expected:
        raise TransferCorrupted(
            f"a chunk starts at byte {chunk.offset}, expected was byte {expected}",
            expected=expected,
            offset=chunk.offset,
        )


class ChunkSequence:
    """Checks the chunks of one payload: no gap, no overlap, the announced length, the stated digest."""

    def __init__(self, total_bytes: int, digest: bytes, kind: DigestKind = "sha256") -> None:
        if len(digest) != DIGEST_BYTES:
            raise InvalidUpdate(f"the stated digest has {len(digest)} bytes; it must have {DIGEST_BYTES}")
        self.total_bytes = total_bytes
        self.received = 0
        self._stated = digest
        self._hash = hasher(kind)

    def check(self, chunk: pb.Chunk | ChunkView) -> None:
        """Refuses a chunk that cannot be the next one."""
        check_offset(chunk, self.received)
        if not chunk.data:
            raise InvalidUpdate(f"the chunk at byte {chunk.offset} is empty", offset=chunk.offset)
        if (end := chunk.offset + len(chunk.data)) > self.total_bytes:
            raise TooMuch(
                f"chunks reach byte {end}, the header announced {self.total_bytes}", announced=self.total_bytes
            )

    def add(self, data: Payload) -> None:
        """Counts the data of a chunk that `check` accepted."""
        self._hash.update(data)
        self.received += len(data)

    def finish(self) -> None:
        """Raises unless the whole payload arrived unchanged."""
        if self.received != self.total_bytes:
            raise CutShort(
                f"the stream ended after {self.received} of {self.total_bytes} bytes",
                received=self.received,
                announced=self.total_bytes,
            )
        if self._hash.digest() != self._stated:
            raise TransferCorrupted(
                "the bytes do not match their digest; send them again",
                stated=self._stated.hex(),
                computed=self._hash.hexdigest(),
            )


class Assembler:
    """Assembles chunks in memory that is allocated once."""

    def __init__(self, total_bytes: int, digest: bytes, kind: DigestKind = "sha256") -> None:
        self._sequence = ChunkSequence(total_bytes, digest, kind)
        # Not a bytearray, which would be filled with zeros first.
        self._payload = np.empty(total_bytes, np.uint8)

    def add(self, chunk: pb.Chunk | ChunkView) -> None:
        """Takes the next chunk."""
        self._sequence.check(chunk)
        # np.copyto and hashing release the interpreter lock; assignment to a slice of a bytearray would hold it.
        np.copyto(self._payload[chunk.offset : chunk.offset + len(chunk.data)], np.frombuffer(chunk.data, np.uint8))
        self._sequence.add(chunk.data)

    def finish(self) -> memoryview:
        """The whole payload, which then belongs to the caller."""
        self._sequence.finish()
        return self._payload.data
