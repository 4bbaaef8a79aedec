"""An update on its way in: checked as it arrives, on disk before it is acknowledged."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from puf_common.errors import Corrupted, InvalidUpdate, TooMuch
from puf_common.manifest import UPDATE, Manifest
from puf_common.v1 import tensors_pb2 as ts
from puf_common.wire import Payload, Piece
from puf_server.failpoints import hit
from puf_server.files import NewFile, unwritten
from puf_server.store import Store

__all__ = ["FiniteCheck", "Upload"]


class FiniteCheck:
    """Sees the bytes of an update go by in pieces of any size and names the first tensor that is not finite."""

    def __init__(self, manifest: Manifest) -> None:
        self._slots = [s for s in manifest.slots(UPDATE) if s.nbytes]
        self._index = 0
        self._at = 0
        self._rest = b""

    def feed(self, data: Payload) -> None:
        view = memoryview(data)
        while view:
            slot = self._slots[self._index]
            left = slot.offset + slot.nbytes - self._at
            piece, view = view[:left], view[left:]
            self._at += len(piece)
            if slot.spec.floating:
                self._check(piece, slot.dtype, slot.spec.name)
            if self._at == slot.offset + slot.nbytes:
                self._index += 1
                self._rest = b""

    def _check(self, piece: memoryview, dtype: np.dtype[np.generic], name: str) -> None:
        if self._rest:
            missing = dtype.itemsize - len(self._rest)
            whole, piece = self._rest + bytes(piece[:missing]), piece[missing:]
            if len(whole) < dtype.itemsize:
                self._rest = whole
                return
            self._finite(whole, dtype, name)
        cut = len(piece) - len(piece) % dtype.itemsize
        self._rest = bytes(piece[cut:])
        self._finite(piece[:cut], dtype, name)

    def _finite(self, data: bytes | memoryview, dtype: np.dtype[np.generic], name: str) -> None:
        if len(data) and not np.isfinite(np.frombuffer(data, dtype)).all():
            raise InvalidUpdate(f"tensor {name} has values that are not finite", tensor=name)


class Upload:
    """Chunks in order into the spool. Nothing is kept unless `finish` returns."""

    def __init__(self, store: Store, layout: Manifest, nbytes: int, digest: bytes) -> None:
        expected = layout.nbytes(UPDATE)
        if nbytes != expected:
            raise InvalidUpdate(f"the update has {nbytes} bytes, the manifest asks for {expected}", expected=expected)
        if len(digest) != 32:
            raise InvalidUpdate("the digest must be a SHA-256 of 32 bytes")
        self._nbytes = nbytes
        self._digest = digest
        self._sha = hashlib.sha256()
        self._finite = FiniteCheck(layout)
        self._received = 0
        self._store = store
        self._file: NewFile | None = None
        with _on_disk():
            self._file = NewFile(store.spool_path(f"{secrets.token_hex(8)}.part"), store.files, "spool")

    def write(self, chunk: ts.Chunk | Piece) -> None:
        data = chunk.data
        if chunk.offset != self._received:
            raise Corrupted(f"a chunk starts at byte {chunk.offset}, expected was byte {self._received}")
        if not data:
            raise InvalidUpdate("a chunk is empty")
        if self._received + len(data) > self._nbytes:
            raise TooMuch(f"the update is longer than the {self._nbytes} bytes its header states")
        assert self._file is not None
        self._finite.feed(data)
        self._sha.update(data)
        with _on_disk():
            self._file.write(data)
        if not self._received:
            hit("upload.after_first_chunk")
        self._received += len(data)

    def publish(self, name: str) -> None:
        """Verifies the whole and puts it into the spool under `name`, durably."""
        if self._received != self._nbytes:
            raise Corrupted(f"the stream ended after {self._received} of {self._nbytes} bytes")
        if self._sha.digest() != self._digest:
            raise Corrupted("the update does not match its digest; send it again")
        assert self._file is not None
        with _on_disk():
            self._file.publish(self._store.spool_path(name))
        self._file = None

    @property
    def open(self) -> bool:
        """Neither published nor discarded."""
        return self._file is not None

    def discard(self) -> None:
        if self._file is not None:
            self._file.discard()
            self._file = None


@contextmanager
def _on_disk() -> Iterator[None]:
    """A full disk is not the client's fault: it hears so and sends the update again."""
    try:
        yield
    except OSError as error:
        raise unwritten(error, "the update") from error
