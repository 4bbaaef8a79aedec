"""The few things that are done to files which must survive a power cut, behind one small port.

Nothing is durable before its `fsync`, no name before the `fsync_dir` of its directory. A test puts a recorder in the
place of the disk and rebuilds every state in which a power cut could have left it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

__all__ = ["DISK", "Bytes", "Disk", "Writes", "make_directories"]

Bytes = bytes | bytearray | memoryview
# Of sync_file_range(2): begin to write out, wait for nothing.
_BEGIN = 2
# More in one call, and the system caches it in huge pages. In a virtual machine whose host takes free ones back, touching
# them for the first time costs many times the copying; smaller pages are mostly ones that were used a moment ago.
_AT_ONCE = 1 << 17


def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux has it, the standard library has not."""
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return cast("Callable[[int, int, int, int], int]", function)


_SYNC_FILE_RANGE = _sync_file_range()


class Writes(Protocol):
    def create(self, path: Path, mode: int = 0o600) -> int:
        """Opens a file that must not exist, for writing, readable by its owner alone unless `mode` says otherwise."""
        ...

    def write(self, handle: int, data: Bytes) -> None: ...

    def hasten(self, handle: int, offset: int, nbytes: int) -> None:
        """Lets the system begin to write these bytes out, so that the sync to come has less to wait for."""
        ...

    def fsync(self, handle: int) -> None: ...

    def close(self, handle: int) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def link(self, source: Path, target: Path) -> None:
        """A second name; unlike a rename it never replaces what is there."""
        ...

    def unlink(self, path: Path) -> None: ...

    def mkdir(self, path: Path) -> None: ...

    def fsync_dir(self, directory: Path) -> None: ...


class Disk:
    """The real thing."""

    def create(self, path: Path, mode: int = 0o600) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), mode)

    def write(self, handle: int, data: Bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view[:_AT_ONCE]) :]

    def hasten(self, handle: int, offset: int, nbytes: int) -> None:
        if _SYNC_FILE_RANGE is not None:
            # Whatever comes of it, also an error, is told by the sync.
            _SYNC_FILE_RANGE(handle, offset, nbytes, _BEGIN)

    def fsync(self, handle: int) -> None:
        os.fsync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink()

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


DISK = Disk()


def make_directories(directory: Path, files: Writes = DISK) -> None:
    """Makes what is missing on the way, each name on disk before anything is put below it."""
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        try:
            files.mkdir(path)
        except FileExistsError:
            # Somebody else was faster, and may not have synced it yet.
            if not path.is_dir():
                raise
        files.fsync_dir(path.parent)
