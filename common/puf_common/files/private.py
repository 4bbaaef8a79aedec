"""Files that only their owner may read: keys, tokens, revocations, the state of a client."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from puf_common.errors import UsageError
from puf_common.files.durable import DISK, Writes, make_directories
from puf_common.files.new_file import NewFile, draft_path, published


def private_directory(directory: Path, files: Writes = DISK) -> Path:
    """Makes the directory, for its owner alone. An existing directory keeps its mode."""
    try:
        make_directories(directory, files)
    except OSError as error:
        raise UsageError(f"cannot make {directory}: {error.strerror}") from None
    return directory


def write_new(path: Path, content: bytes, *, mode: int = 0o600, files: Writes = DISK) -> None:
    """Writes a file that must not exist yet: complete or not at all, and on disk when this returns."""
    try:
        create_once(path, content, files, mode=mode)
    except FileExistsError:
        raise UsageError(f"{path} exists already and is not overwritten") from None


def create_once(path: Path, content: bytes, files: Writes = DISK, *, mode: int = 0o600) -> None:
    """Writes a new file. If two processes do so at once, the second gets a FileExistsError, and the first file is on disk."""
    try:
        _write(path, content, mode, files, replace=False)
    except FileExistsError:
        # The other process may not have synced the name yet.
        files.fsync_dir(path.parent)
        raise


def write_over(path: Path, content: bytes, *, mode: int = 0o600, files: Writes = DISK) -> None:
    """Replaces a file: a reader sees the old file or the new one. The new one is on disk when this returns."""
    _write(path, content, mode, files, replace=True)


def exposed(path: Path) -> bool:
    """Whether others than owner and group can read the file."""
    with suppress(OSError):
        return bool(path.stat().st_mode & 0o004)
    return False


def _write(path: Path, content: bytes, mode: int, files: Writes, *, replace: bool) -> None:
    try:
        file = NewFile(draft_path(path), files, mode)
    except OSError as error:
        raise UsageError(f"cannot write to {path.parent}: {error.strerror}") from None
    with published(file, path, replace=replace):
        if os.name != "nt" and os.geteuid() == 0:
            # Root administers the directory of a service: the service must be able to read the file.
            owner = path.parent.stat()
            with suppress(OSError):
                os.fchown(file.handle, owner.st_uid, owner.st_gid)
        file.write(content)
