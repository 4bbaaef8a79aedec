"""A file that appears under its name only when it is complete and on disk."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from puf_common.files.durable import DISK, Bytes, Writes

# Bytes after which the system begins to write to the disk. Otherwise the sync at the end waits for the whole file.
_HASTEN_EVERY = 4 << 20


def draft_path(target: Path) -> Path:
    """A temporary name beside the target: hidden, and different for every call."""
    return target.with_name(f".{target.name}.{secrets.token_hex(6)}")


class NewFile:
    """A file that is being written under a temporary name."""

    def __init__(self, path: Path, files: Writes = DISK, mode: int = 0o600) -> None:
        self.path = path
        self._files = files
        self._handle: int | None = files.create(path, mode)
        self._written = self._hastened = 0

    @property
    def handle(self) -> int:
        assert self._handle is not None
        return self._handle

    def write(self, data: Bytes) -> None:
        self._files.write(self.handle, data)
        self._written += len(data)
        if self._written - self._hastened >= _HASTEN_EVERY:
            self._files.hasten(self.handle, self._hastened, self._written - self._hastened)
            self._hastened = self._written

    def publish(self, target: Path, *, replace: bool = True) -> None:
        """Makes the file durable and gives it its name. Without `replace` an existing target is a FileExistsError."""
        self.sync(target)
        self._close()
        if replace:
            self._files.rename(self.path, target)
        else:
            # Unlike a rename, a link never replaces a file.
            self._files.link(self.path, target)
            self._files.unlink(self.path)
        self.sync_name(target)

    def discard(self) -> None:
        """Deletes the file unless it was published."""
        self._close()
        with suppress(FileNotFoundError):
            self._files.unlink(self.path)

    def sync(self, target: Path) -> None:
        """Brings the content to the disk."""
        self._files.fsync(self.handle)

    def sync_name(self, target: Path) -> None:
        """Brings the name to the disk."""
        self._files.fsync_dir(target.parent)

    def _close(self) -> None:
        # Close once: the system may have given the number to another file since.
        handle, self._handle = self._handle, None
        if handle is not None:
            self._files.close(handle)


_File = TypeVar("_File", bound=NewFile)


@contextmanager
def published(file: _File, target: Path, *, replace: bool = True) -> Iterator[_File]:
    """Publishes the file at the end of the block, and discards it if the block or the publishing raises."""
    try:
        yield file
        file.publish(target, replace=replace)
    except BaseException:
        file.discard()
        raise
