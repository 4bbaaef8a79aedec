"""Files that are compared with their digests while they are summed.

A bit can change on disk after the server has acknowledged an update. The bytes that enter a sum are therefore the bytes
that are hashed: a file is read once, and its digest is compared before the result gets its name.
"""

from __future__ import annotations

import math
from threading import Condition

from puf_common.errors import StorageCorrupted
from puf_common.tensors.digests import DigestKind, hasher
from puf_server.storage.stored_files import StoredFile


class DamagedFile(StorageCorrupted):
    """A file does not match its digest. `key` is the assignment of an update, and empty for other files."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class _Interrupted(Exception):
    """An earlier block failed, so that this one is not needed."""


class VerifiedSource:
    """Hashes a file in the order of its bytes while several threads read its blocks.

    A thread that reads a block waits until the block before it is hashed. So the thread of each block must have been
    started before the thread of the next one, and every byte must be read. `fail` releases the threads that wait.
    """

    def __init__(self, raw: StoredFile, where: str, digest: str, kind: DigestKind, key: str = "") -> None:
        self.raw = raw
        self._where = where
        self._digest = digest
        self._kind = kind
        self._key = key
        self._hash = hasher(kind)
        self._at = 0
        self._failed_at = math.inf
        self._turn = Condition()

    def read_into(self, offset: int, out: memoryview) -> None:
        """Reads a block and hashes it in its turn. A block that is hashed already is only read."""
        self.raw.read_into(offset, out)
        with self._turn:
            self._turn.wait_for(lambda: self._at >= offset or self._failed_at < offset)
            if self._at < offset:
                raise _Interrupted
            if self._at == offset:
                self._hash.update(out)
                self._at += len(out)
                self._turn.notify_all()

    def fail(self, offset: int) -> None:
        """Tells the threads of later blocks that the block at `offset` will not be hashed."""
        with self._turn:
            self._failed_at = min(self._failed_at, offset)
            self._turn.notify_all()

    def finish(self) -> None:
        """Compares the digest after the last block. Raises DamagedFile."""
        if self._at != self.raw.nbytes or self._hash.hexdigest() != self._digest:
            raise self._damaged()

    def verify(self) -> None:
        """Reads and hashes the whole file by itself. Raises DamagedFile."""
        if self.raw.digest(self._kind) != self._digest:
            raise self._damaged()

    def _damaged(self) -> DamagedFile:
        what = "its client is asked again" if self._key else "bring it back from a backup"
        return DamagedFile(f"{self._where} does not match its digest: {what}", self._key)
