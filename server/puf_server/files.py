"""Files that survive a crash: everything the server writes outside its database goes through here.

A file appears under its name only when it is complete and on disk: written beside it, synced, renamed, directory synced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["FileSource", "NewFile", "new_file", "remove", "sync_directory"]


class NewFile:
    """A file being written; it does not exist under its name yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("xb", buffering=0)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def publish(self, target: Path) -> None:
        """Makes the file durable and gives it its name."""
        os.fsync(self._file.fileno())
        self._file.close()
        self.path.rename(target)
        sync_directory(target.parent)

    def discard(self) -> None:
        self._file.close()
        remove(self.path)


@contextmanager
def new_file(target: Path) -> Iterator[NewFile]:
    """Writes a file that appears at the end, or not at all."""
    file = NewFile(target.with_name(f"{target.name}.{os.getpid()}.part"))
    try:
        yield file
        file.publish(target)
    except BaseException:
        file.discard()
        raise


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()


class FileSource:
    """Random access to the payload of a file, without mapping or holding it. Closes with the context."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._offset = offset
        self._fd = os.open(path, os.O_RDONLY)

    def __enter__(self) -> FileSource:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read_into(self, offset: int, out: memoryview) -> None:
        done = 0
        while done < len(out):
            got = os.preadv(self._fd, [out[done:]], self._offset + offset + done)
            if got == 0:
                raise OSError(f"file ends {len(out) - done} bytes early")
            done += got
