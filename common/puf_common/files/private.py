"""Files that nobody but their owner may read: keys, tokens, lists of who is refused, what a client remembers."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from puf_common.errors import UsageError
from puf_common.files.durable import DISK, Writes, make_directories

__all__ = ["create_once", "exposed", "private_directory", "write_new", "write_over"]


def private_directory(directory: Path, files: Writes = DISK) -> Path:
    """Makes the directory, for its owner alone. One that exists keeps its mode."""
    try:
        make_directories(directory, files)
    except OSError as error:
        raise UsageError(f"cannot make {directory}: {error.strerror}") from None
    return directory


def write_new(path: Path, content: bytes, *, mode: int = 0o600, files: Writes = DISK) -> None:
    """Writes a file that must not exist yet; whole or not at all, on disk when this returns."""
    try:
        create_once(path, content, files, mode=mode)
    except FileExistsError:
        raise UsageError(f"{path} exists already and is not overwritten") from None


def create_once(path: Path, content: bytes, files: Writes = DISK, *, mode: int = 0o600) -> None:
    """The same for two who do it at once: the second gets a FileExistsError, and finds the first one's on disk."""
    draft = _draft(path, content, mode, files)
    try:
        # Unlike a rename, a link never replaces what is there.
        files.link(draft, path)
    finally:
        files.unlink(draft)
        files.fsync_dir(path.parent)


def write_over(path: Path, content: bytes, *, mode: int = 0o600, files: Writes = DISK) -> None:
    """The same, replacing what is there: readers see the old file or the new one."""
    draft = _draft(path, content, mode, files)
    try:
        files.rename(draft, path)
    except BaseException:
        files.unlink(draft)
        raise
    files.fsync_dir(path.parent)


def exposed(path: Path) -> bool:
    """Whether others than owner and group can read the file."""
    with suppress(OSError):
        return bool(path.stat().st_mode & 0o004)
    return False


def _draft(path: Path, content: bytes, mode: int, files: Writes) -> Path:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        handle = files.create(draft, mode)
    except OSError as error:
        raise UsageError(f"cannot write to {path.parent}: {error.strerror}") from None
    try:
        if os.name != "nt" and os.geteuid() == 0:
            # Root looking after a service's directory: the service must be able to read what is written there.
            owner = path.parent.stat()
            with suppress(OSError):
                os.fchown(handle, owner.st_uid, owner.st_gid)
        files.write(handle, content)
        files.fsync(handle)
    except BaseException:
        files.close(handle)
        files.unlink(draft)
        raise
    files.close(handle)
    return draft
