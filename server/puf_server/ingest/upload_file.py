"""An update on its way in: checked as it arrives, on disk before it is acknowledged."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from puf_common.errors import CutShort, InvalidUpdate, TooMuch, TransferCorrupted
from puf_common.tensors.chunks import Piece
from puf_common.tensors.digests import DIGEST_BYTES, DigestKind, hasher
from puf_common.tensors.manifest import UPDATE, Manifest
from puf_common.v1 import tensors_pb2 as ts
from puf_server.core.update_bounds import Norms
from puf_server.failpoints import hit
from puf_server.ingest.value_checks import UpdateCheck
from puf_server.storage.durable import NewFile, unwritten
from puf_server.storage.state_store import Store

__all__ = ["Upload"]


class Upload:
    """Chunks in order into the spool. Nothing is kept unless `finish` returns."""

    def __init__(
        self,
        store: Store,
        layout: Manifest,
        nbytes: int,
        digest: bytes,
        kind: DigestKind = "sha256",
        check: UpdateCheck | None = None,
    ) -> None:
        expected = layout.nbytes(UPDATE)
        if nbytes != expected:
            raise InvalidUpdate(f"the update has {nbytes} bytes, the manifest asks for {expected}", expected=expected)
        if len(digest) != DIGEST_BYTES:
            raise InvalidUpdate(f"the digest must have {DIGEST_BYTES} bytes")
        self._nbytes = nbytes
        self._digest = digest
        self._hash = hasher(kind)
        self._check = check or UpdateCheck(layout)
        self._received = 0
        self._store = store
        self._file: NewFile | None = None
        with _on_disk():
            self._file = NewFile(store.spool_path(f"{secrets.token_hex(8)}.part"), store.files, "spool")

    def write(self, chunk: ts.Chunk | Piece) -> None:
        data = chunk.data
        if chunk.offset != self._received:
            raise TransferCorrupted(f"a chunk starts at byte {chunk.offset}, expected was byte {self._received}")
        if not data:
            raise InvalidUpdate("a chunk is empty")
        if self._received + len(data) > self._nbytes:
            raise TooMuch(f"the update is longer than the {self._nbytes} bytes its header states")
        assert self._file is not None
        self._check.feed(data)
        self._hash.update(data)
        with _on_disk():
            self._file.write(data)
        if not self._received:
            hit("upload.after_first_chunk")
        self._received += len(data)

    @property
    def norms(self) -> Norms:
        return self._check.norms

    def publish(self, name: str) -> None:
        """Verifies the whole and puts it into the spool under `name`, durably."""
        if self._received != self._nbytes:
            raise CutShort(f"the stream ended after {self._received} of {self._nbytes} bytes")
        if self._hash.digest() != self._digest:
            raise TransferCorrupted("the update does not match its digest; send it again")
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
