"""Files of a federation in a directory: on a local disk, or on a volume that several machines share."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from puf_common.files.durable import Bytes
from puf_server.storage.durable import Files, FileSource, NewFile, remove, sync_directory
from puf_server.storage.layout import FOLDERS, draft_name


class DirectoryFiles:
    """Safe to use from any thread."""

    def __init__(self, directory: Path, disk: Files, owner: str = "") -> None:
        """`owner` is this process, where several write in the directory."""
        self._directory = directory
        self._disk = disk
        self._owner = owner

    def new(self, draft: str, points: str = "", *, cache: bool = False) -> DirectoryFile:
        # A process that lost the right to fold may still write the same file.
        path = self._directory / draft_name(draft, self._owner)
        if not path.parent.exists():
            self._disk.mkdir(path.parent)
            sync_directory(self._directory, self._disk)
        return DirectoryFile(self._directory, (_CacheFile if cache else NewFile)(path, self._disk, points))

    def read(self, name: str, last: int | None = None) -> FileSource:
        path = self._directory / name
        return self._disk.read(path, 0 if last is None else path.stat().st_size - last)

    def exists(self, name: str) -> bool:
        return (self._directory / name).exists()

    def names(self, folder: str = "") -> list[str]:
        folders = [f for f in ((folder,) if folder else FOLDERS) if (self._directory / f).exists()]
        return [f"{f}/{name}" for f in folders for name in self._disk.listdir(self._directory / f)]

    def delete(self, names: Iterable[str]) -> None:
        paths = [self._directory / name for name in names]
        for path in paths:
            remove(path, self._disk)
        for folder in sorted({path.parent for path in paths}):
            sync_directory(folder, self._disk)

    def where(self, name: str) -> str:
        return str(self._directory / name)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self._directory).free


class DirectoryFile:
    """A file that is being written under a temporary name."""

    def __init__(self, directory: Path, file: NewFile) -> None:
        self._directory = directory
        self._file = file

    def write(self, data: Bytes) -> None:
        self._file.write(data)

    def publish(self, name: str) -> None:
        self._file.publish(self._directory / name)

    def discard(self) -> None:
        self._file.discard()


class _CacheFile(NewFile):
    """A file that is not synced: its reader recognises an incomplete one."""

    def sync(self, target: Path) -> None:
        pass

    def sync_name(self, target: Path) -> None:
        pass
