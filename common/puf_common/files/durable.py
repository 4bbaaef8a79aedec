"""The file operations that durability depends on, behind one small interface.

Data is durable after its `fsync`, a name after the `fsync_dir` of its directory. Tests replace the disk by a recorder
and rebuild every state in which a power cut could leave the directory.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, cast

Bytes = bytes | bytearray | memoryview
# SYNC_FILE_RANGE_WRITE of sync_file_range(2): start writing to the disk, do not wait.
_BEGIN = 2
# The system caches larger writes in huge pages. If a virtual machine's host reclaims free memory, the first access to such a
# page takes many times longer than the copy. Smaller pages were mostly used a moment ago.
_AT_ONCE = 1 << 17


def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The function of the C library; None where there is none. The standard library does not offer it."""
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return cast("Callable[[int, int, int, int], int]", function)


_SYNC_FILE_RANGE = _sync_file_range()


class Writes(Protocol):
    @property
    def durable(self) -> bool:
        """Whether syncs reach the disk. If not, a database beside these files need not sync, either."""
        ...

    def create(self, path: Path, mode: int = 0o600) -> int:
        """Creates a file that must not exist and opens it for writing. By default only its owner can read it."""
        ...

    def write(self, handle: int, data: Bytes) -> None: ...

    def hasten(self, handle: int, offset: int, nbytes: int) -> None:
        """Starts writing these bytes to the disk, so that the next `fsync` waits less."""
        ...

    def fsync(self, handle: int) -> None: ...

    def close(self, handle: int) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def link(self, source: Path, target: Path) -> None:
        """Gives a file a second name. Unlike a rename it never replaces a file."""
        ...

    def unlink(self, path: Path) -> None: ...

    def mkdir(self, path: Path) -> None: ...

    def fsync_dir(self, directory: Path) -> None: ...


class Disk:
    """The disk of this machine."""

    durable = True

    def create(self, path: Path, mode: int = 0o600) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), mode)

    def write(self, handle: int, data: Bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view[:_AT_ONCE]) :]

    def hasten(self, handle: int, offset: int, nbytes: int) -> None:
        if _SYNC_FILE_RANGE is not None:
            # An error is reported by the sync that follows.
            _SYNC_FILE_RANGE(handle, offset, nbytes, _BEGIN)

    def fsync(self, handle: int) -> None:
        os.fsync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        path.mkdir(mode=0o700)

    def fsync_dir(self, directory: Path) -> None:
        if os.name == "nt":
            return
        handle = os.open(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class UnsyncedDisk(Disk):
    """The disk of this machine without syncs: a power cut can lose or damage files. For runs that can be repeated."""

    durable = False

    def hasten(self, handle: int, offset: int, nbytes: int) -> None:
        pass

    def fsync(self, handle: int) -> None:
        pass

    def rename(self, source: Path, target: Path) -> None:
        # Some file systems write a file to the disk when it replaces another one.
        with suppress(FileNotFoundError):
            os.unlink(target)
        os.rename(source, target)

    def fsync_dir(self, directory: Path) -> None:
        pass


DISK = Disk()
UNSYNCED = UnsyncedDisk()


def make_directories(directory: Path, files: Writes = DISK) -> None:
    """Makes a directory and its missing parents. Each name is on disk before the next one is made below it."""
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        try:
            files.mkdir(path)
        except FileExistsError:
            # Another process made it, and may not have synced it yet.
            if not path.is_dir():
                raise
        files.fsync_dir(path.parent)
