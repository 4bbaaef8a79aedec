"""Files that survive a crash. The server writes all files outside its database through this module.

A file gets its name only when it is complete and on disk: write under another name, sync, rename, sync the directory. All
operations go through the port `Files`. A test records them and rebuilds every state that a power cut could leave.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NoReturn, Protocol

from puf_common.config.exit_codes import Exit
from puf_common.errors import Unavailable
from puf_common.files.durable import Bytes, Writes
from puf_common.files.durable import Disk as PlainDisk
from puf_common.files.durable import UnsyncedDisk as PlainUnsyncedDisk
from puf_common.files.new_file import NewFile as PlainNewFile
from puf_common.files.new_file import published
from puf_common.logging import get_logger
from puf_server.failpoints import hit
from puf_server.storage.stored_files import StoredFile

log = get_logger(__name__)


class Files(Writes, Protocol):
    """The server's operations on files. No data is durable before its `fsync`, no name before its `fsync_dir`."""

    def listdir(self, directory: Path) -> list[str]: ...

    def read(self, path: Path, offset: int = 0) -> FileSource: ...


class Disk(PlainDisk):
    """Files of the operating system."""

    def listdir(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def read(self, path: Path, offset: int = 0) -> FileSource:
        return FileSource(path, offset)


class UnsyncedDisk(PlainUnsyncedDisk, Disk):
    """The same without syncs, for simulations."""


DISK = Disk()
UNSYNCED = UnsyncedDisk()


class NewFile(PlainNewFile):
    """A file that is being written. A failed sync ends the process. `points` begins the names of its failpoints."""

    def __init__(self, path: Path, files: Files = DISK, points: str = "") -> None:
        super().__init__(path, files)
        self._points = points

    def write(self, data: Bytes) -> None:
        self._hit("write")
        super().write(data)

    def sync(self, target: Path) -> None:
        def sync() -> None:
            self._hit("before_fsync")
            super(NewFile, self).sync(target)

        _synced(sync, target)
        self._hit("after_fsync")

    def sync_name(self, target: Path) -> None:
        self._hit("after_rename")
        _synced(lambda: super(NewFile, self).sync_name(target), target.parent)

    def _hit(self, where: str) -> None:
        if self._points:
            hit(f"{self._points}.{where}")


def new_file(target: Path, files: Files = DISK) -> AbstractContextManager[NewFile]:
    """A file that appears at the end of the block, or not at all."""
    # Processes in two containers may have the same number.
    draft = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    return published(NewFile(draft, files), target)


def sync_file(handle: int, path: Path, files: Files = DISK) -> None:
    _synced(lambda: files.fsync(handle), path)


def sync_directory(directory: Path, files: Files = DISK) -> None:
    _synced(lambda: files.fsync_dir(directory), directory)


def remove(path: Path, files: Files = DISK) -> None:
    with suppress(FileNotFoundError):
        files.unlink(path)


def unwritten(error: OSError, what: str) -> Unavailable:
    """The error for a caller whose data could not be written: nothing was changed, the caller may try again."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(f"the server's disk is full: {what} was not stored; send it again when there is room")
    return Unavailable(f"the server cannot write its files ({error.strerror or error}): {what} was not stored")


def end_process(what: str, error: Exception) -> NoReturn:
    """Ends the process after a failed sync, because the content of the disk is unknown.

    A repeated sync can return success although the data is lost: the kernel drops pages that it could not write and marks
    them clean. Only reading all files again, as a start does, shows what is on disk.
    """
    exit_now("sync failed: the process ends, because the content of the disk is unknown", what=what, error=str(error))


def exit_now(event: str, **facts: object) -> NoReturn:
    """Ends the process with a last line in its log. Nothing else is written or deleted."""
    log.critical(event, **facts)
    logging.shutdown()
    os._exit(Exit.FAILURE)


def _synced(sync: Callable[[], None], what: Path) -> None:
    try:
        sync()
    except OSError as error:
        end_process(str(what), error)


class FileSource(StoredFile):
    """Random access to a file of the disk, from `offset` on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._offset = offset
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._fd)

    @property
    def nbytes(self) -> int:
        return os.fstat(self._fd).st_size - self._offset

    def read_into(self, offset: int, out: memoryview) -> None:
        done = 0
        while done < len(out):
            got = os.preadv(self._fd, [out[done:]], self._offset + offset + done)
            if got == 0:
                raise OSError(f"file ends {len(out) - done} bytes early")
            done += got
