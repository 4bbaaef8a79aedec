"""Where models, updates, history and differences are stored: in a directory, or in an object store.

A name is FOLDER/FILE. A file gets its name only when it is complete, durable and verified. A record may name the file after
that. A file is deleted after the transaction that removes its record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, Self

from puf_common.files.durable import Bytes
from puf_common.tensors.digests import DigestKind, hasher


class StoredFile(ABC):
    """Random access to the bytes of a stored file, which are read as needed. Leaving the context closes it."""

    # Bytes that are read at a time where a whole file is read.
    _block = 1 << 20

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def nbytes(self) -> int: ...

    @abstractmethod
    def read_into(self, offset: int, out: memoryview) -> None:
        """Fills `out` with the bytes from `offset` on. Raises OSError where the file ends early or cannot be read."""

    @abstractmethod
    def close(self) -> None: ...

    def digest(self, kind: DigestKind = "sha256") -> str:
        """The digest of all bytes in hexadecimal digits."""
        computed = hasher(kind)
        for block in self.blocks():
            computed.update(block)
        return computed.hexdigest()

    def blocks(self, size: int = 0) -> Iterator[memoryview]:
        """All bytes in order, `size` at a time. All blocks use the same memory."""
        size, total = size or self._block, self.nbytes
        memory = memoryview(bytearray(min(size, total)))
        for offset in range(0, total, size):
            block = memory[: min(size, total - offset)]
            self.read_into(offset, block)
            yield block


class NewStoredFile(Protocol):
    """A file that is being written and has no name yet."""

    def write(self, data: Bytes) -> None: ...

    def publish(self, name: str) -> None:
        """Makes the file durable and gives it its name. Replaces a file of the same name."""
        ...

    def discard(self) -> None:
        """Deletes the file unless it was published."""
        ...


@contextmanager
def published(file: NewStoredFile, name: str) -> Iterator[NewStoredFile]:
    """The file has its name at the end of the block, or is deleted."""
    try:
        yield file
        file.publish(name)
    except BaseException:
        file.discard()
        raise


class StoredFiles(Protocol):
    """All files of a federation that no key or token is in. Safe to use from any thread. Failures are OSErrors."""

    def new(self, draft: str, points: str = "", *, cache: bool = False) -> NewStoredFile:
        """A file that is being written. `draft` begins a temporary name, where there is one.

        `points` begins the names of its failpoints. A file of a `cache` may be lost in a power cut.
        """
        ...

    def read(self, name: str, last: int | None = None) -> StoredFile:
        """Opens a file, or only the `last` bytes of it. Raises FileNotFoundError."""
        ...

    def exists(self, name: str) -> bool: ...

    def names(self, folder: str = "") -> list[str]:
        """The names of all files, or of those in a folder, also of files being written."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Deletes files durably. A file that is not there is no error."""
        ...

    def where(self, name: str) -> str:
        """Where the file is, for messages."""
        ...

    def free_bytes(self) -> int | None:
        """Bytes that can still be stored; None: unknown."""
        ...
