"""The directory that a power cut leaves of a process that ran under `recorder.c`.

A write is durable after the sync of its file, a name after the sync of its directory. Of the changes that are not
durable a random beginning survives, for each file and each directory separately. The next write after it may be torn.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

__all__ = ["Layer", "compiled"]

_HEAD = struct.Struct("<IIQQII")
_DATA, _NAMES = "wt", "crlum"
# (inode, how often it was created): the file system uses an inode again after a deletion.
Node = tuple[int, int]


def compiled(directory: Path) -> Path | None:
    """The library, or None if there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "recorder.so"
    source = Path(__file__).parent / "recorder.c"
    subprocess.run([compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@dataclass(frozen=True)
class _Op:
    kind: str
    inode: int
    offset: int
    path: str
    other: str
    data: bytes
    node: Node = (0, 0)

    @property
    def folder(self) -> str:
        return os.path.dirname(self.other or self.path)


class Layer:
    """One directory under the recorder. Everything that is in it now counts as durable."""

    def __init__(self, root: Path, library: Path) -> None:
        self.root, self._log = root, root.parent / f"{root.name}.ops"
        self.environment = {
            "LD_PRELOAD": str(library),
            "UNSYNCED_ROOT": str(root),
            "UNSYNCED_LOG": str(self._log),
        }
        self._begin()

    def _begin(self) -> None:
        self._log.unlink(missing_ok=True)
        self._folders = {str(self.root)} | {str(p) for p in self.root.rglob("*") if p.is_dir()}
        files = [p for p in self.root.rglob("*") if p.is_file()]
        self._entries: dict[str, Node] = {str(p): (p.stat().st_ino, 0) for p in files}
        self._contents: dict[Node, bytes] = {(p.stat().st_ino, 0): p.read_bytes() for p in files}

    def crash(self, random: Random) -> Counter[str]:
        """Replaces the directory by one that a power cut could leave. Returns how many changes were lost, by kind."""
        ops = list(self._read())
        lost, torn = _chosen(ops, random)
        folders, files = self._applied(ops, lost, torn)
        shutil.rmtree(self.root)
        for folder in sorted(folders):
            if Path(folder) == self.root or Path(folder).parent.is_dir():
                Path(folder).mkdir(mode=0o700)
        for name, content in files.items():
            if Path(name).parent.is_dir():
                Path(name).write_bytes(content)
                Path(name).chmod(0o600)
        self._begin()
        return Counter(ops[i].kind for i in lost)

    def differences(self) -> list[str]:
        """Files whose recorded content differs from the directory: changes that the recorder did not see."""
        _, files = self._applied(list(self._read()), frozenset(), {})
        there = {str(p): p.read_bytes() for p in self.root.rglob("*") if p.is_file() and not _shared(str(p))}
        return sorted(name for name in files.keys() | there.keys() if files.get(name) != there.get(name))

    def _read(self) -> Iterator[_Op]:
        content = self._log.read_bytes() if self._log.exists() else b""
        created: Counter[int] = Counter()
        at = 0
        while at + _HEAD.size <= len(content):
            length, kind, inode, offset, path, other = _HEAD.unpack_from(content, at)
            if at + length > len(content):
                # The process was killed while it wrote this record.
                return
            begin = at + _HEAD.size
            names = content[begin : begin + path + other].decode()
            op = _Op(chr(kind), inode, offset, names[:path], names[path:], content[begin + path + other : at + length])
            created[inode] += op.kind == "c"
            yield replace(op, node=(inode, created[inode]))
            at += length

    def _applied(self, ops: list[_Op], lost: frozenset[int], torn: dict[int, int]) -> tuple[set[str], dict[str, bytes]]:
        folders, entries = set(self._folders), dict(self._entries)
        contents = {node: bytearray(content) for node, content in self._contents.items()}
        for index, op in enumerate(ops):
            if index in lost and index not in torn:
                continue
            if op.kind in _DATA:
                content = contents.setdefault(op.node, bytearray())
                if op.kind == "t":
                    del content[op.offset :]
                data = op.data[: torn.get(index, len(op.data))]
                content.extend(bytes(max(0, op.offset - len(content))))
                content[op.offset : op.offset + len(data)] = data
            elif op.kind == "c":
                entries[op.path] = op.node
                contents.setdefault(op.node, bytearray())
            elif op.kind == "m":
                folders.add(op.path)
            elif op.kind in "rl":
                _moved(op, folders, entries)
            elif op.kind == "u":
                entries.pop(op.path, None)
                folders.discard(op.path)
        # Shared memory of the database: its content is made again by the first process that opens it.
        return folders, {name: bytes(contents[node]) for name, node in entries.items() if not _shared(name)}


def _moved(op: _Op, folders: set[str], entries: dict[str, Node]) -> None:
    if op.path in folders:
        for name in [f for f in folders if f == op.path or f.startswith(f"{op.path}/")]:
            folders.discard(name)
            folders.add(op.other + name[len(op.path) :])
        for name in [n for n in entries if n.startswith(f"{op.path}/")]:
            entries[op.other + name[len(op.path) :]] = entries.pop(name)
        return
    if op.kind == "r":
        entries.pop(op.path, None)
    entries[op.other] = op.node


def _shared(name: str) -> bool:
    return name.endswith("-shm")


def _chosen(ops: list[_Op], random: Random) -> tuple[frozenset[int], dict[int, int]]:
    """The changes that are lost, and those of them of which the first bytes survive."""
    files: dict[Node, list[int]] = defaultdict(list)
    names: dict[str, list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        if op.kind in _DATA:
            files[op.node].append(index)
        elif op.kind in _NAMES:
            names[op.folder].append(index)
        elif op.kind == "f":
            files.pop(op.node, None)
        elif op.kind == "d":
            names.pop(op.path, None)
    lost: set[int] = set()
    torn: dict[int, int] = {}
    # Often everything that is not durable is lost, which finds most missing syncs.
    everything = random.random() < 0.5
    for pending in [*files.values(), *names.values()]:
        kept = 0 if everything else random.randint(0, len(pending))
        lost.update(pending[kept:])
        if kept < len(pending) and not everything and ops[pending[kept]].kind == "w":
            torn[pending[kept]] = random.randrange(len(ops[pending[kept]].data))
    return frozenset(lost), torn
