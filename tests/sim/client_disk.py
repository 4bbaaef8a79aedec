"""The disk of a simulated client: a real directory, of which only synced data and synced names survive a power cut."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from puf_common.files.durable import Bytes, Disk

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.process import Process


@dataclass
class _File:
    data: bytes = b""
    synced: bytes = b""


class ClientDisk:
    """What the disk holds now, and what it would hold after a power cut."""

    def __init__(self, root: Path, before_write: Callable[[Process], None]) -> None:
        self.root = root
        root.mkdir()
        # Called before every operation. It may kill the process.
        self.before_write = before_write
        self.now: dict[Path, _File] = {}
        self._durable: dict[Path, _File] = {}

    def sync_names(self, directory: Path) -> None:
        kept = {path: file for path, file in self._durable.items() if path.parent != directory}
        self._durable = kept | {path: file for path, file in self.now.items() if path.parent == directory}

    def lose_unsynced(self) -> None:
        """The power comes back: files are as they were synced, under the names that were synced."""
        for path in self.now.keys() - self._durable.keys():
            path.unlink(missing_ok=True)
        for path, file in self._durable.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.synced)
            file.data = file.synced
        self.now = dict(self._durable)

    def erase(self) -> None:
        shutil.rmtree(self.root)
        self.root.mkdir()
        self.now, self._durable = {}, {}


class ProcessFiles(Disk):
    """The file operations of one process. It can be killed, and the power can fail, before each of them."""

    def __init__(self, disk: ClientDisk, process: Process) -> None:
        self._disk = disk
        self._process = process
        self._open: dict[int, _File] = {}

    def _may_fail(self) -> None:
        self._process.require_alive()
        self._disk.before_write(self._process)
        self._process.require_alive()

    def create(self, path: Path, mode: int = 0o600) -> int:
        self._may_fail()
        handle = super().create(path, mode)
        self._open[handle] = self._disk.now[path] = _File()
        return handle

    def write(self, handle: int, data: Bytes) -> None:
        self._may_fail()
        super().write(handle, data)
        self._open[handle].data += bytes(data)

    def fsync(self, handle: int) -> None:
        self._may_fail()
        self._open[handle].synced = self._open[handle].data

    def close(self, handle: int) -> None:
        # Also for a process that was killed: the system closes its files.
        self._open.pop(handle, None)
        super().close(handle)

    def rename(self, source: Path, target: Path) -> None:
        self._may_fail()
        super().rename(source, target)
        self._disk.now[target] = self._disk.now.pop(source)

    def link(self, source: Path, target: Path) -> None:
        self._may_fail()
        super().link(source, target)
        self._disk.now[target] = self._disk.now[source]

    def unlink(self, path: Path) -> None:
        self._may_fail()
        super().unlink(path)
        self._disk.now.pop(path, None)

    def mkdir(self, path: Path) -> None:
        self._may_fail()
        super().mkdir(path)

    def fsync_dir(self, directory: Path) -> None:
        self._may_fail()
        self._disk.sync_names(directory)
