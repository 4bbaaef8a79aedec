"""An update on its way in: checked as it arrives, on disk before it is acknowledged."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from puf_common.errors import InvalidUpdate
from puf_common.tensors.chunks import ChunkSequence, ChunkView
from puf_common.tensors.digests import DigestKind
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
        self._sequence = ChunkSequence(nbytes, digest, kind)
        self._check = check or UpdateCheck(layout)
        self._store = store
        self._file: NewFile | None = None
        with _on_disk():
            self._file = NewFile(store.spool_path(f"{secrets.token_hex(8)}.part"), store.files, "spool")

    def write(self, chunk: ts.Chunk | ChunkView) -> None:
        self._sequence.check(chunk)
        assert self._file is not None
        self._check.feed(chunk.data)
        with _on_disk():
            self._file.write(chunk.data)
        self._sequence.add(chunk.data)
        if not chunk.offset:
            hit("upload.after_first_chunk")

    @property
    def norms(self) -> Norms:
        return self._check.norms

    def publish(self, name: str) -> None:
        """Verifies the whole and puts it into the spool under `name`, durably."""
        self._sequence.finish()
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
