"""Files that nobody but their owner may read: keys, tokens, lists of who is refused."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from puf_common.errors import UsageError

__all__ = ["exposed", "private_directory", "write_new", "write_over"]


def private_directory(directory: Path) -> Path:
    """Makes the directory, for its owner alone. One that exists keeps its mode."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {directory}: {error.strerror}") from None
    return directory


def write_new(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Writes a file that must not exist yet; whole or not at all, on disk when this returns."""
    draft = _draft(path, content, mode)
    try:
        # Unlike a rename, a link never replaces what is there.
        os.link(draft, path)
    except FileExistsError:
        raise UsageError(f"{path} exists already and is not overwritten") from None
    finally:
        draft.unlink(missing_ok=True)
    _sync(path.parent)


def write_over(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """The same, replacing what is there: readers see the old file or the new one."""
    draft = _draft(path, content, mode)
    try:
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def exposed(path: Path) -> bool:
    """Whether others than owner and group can read the file."""
    with suppress(OSError):
        return bool(path.stat().st_mode & 0o004)
    return False


def _draft(path: Path, content: bytes, mode: int) -> Path:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise UsageError(f"cannot write to {path.parent}: {error.strerror}") from None
    try:
        with open(descriptor, "wb") as file:
            if os.name != "nt" and os.geteuid() == 0:
                # Root looking after a service's directory: the service must be able to read what is written there.
                owner = path.parent.stat()
                with suppress(OSError):
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft


def _sync(directory: Path) -> None:
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
