"""The few things that are done to files which must survive a power cut, behind one small port.

Nothing is durable before its `fsync`, no name before the `fsync_dir` of its directory. A test puts a recorder in the
place of the disk and rebuilds every state in which a power cut could have left it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

__all__ = ["DISK", "Bytes", "Disk", "Writes", "make_directories"]

Bytes = bytes | bytearray | memoryview


class Writes(Protocol):
    def create(self, path: Path, mode: int = 0o600) -> int:
        """Opens a file that must not exist, for writing, readable by its owner alone unless `mode` says otherwise."""
        ...

    def write(self, handle: int, data: Bytes) -> None: ...

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
            view = view[os.write(handle, view) :]

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
