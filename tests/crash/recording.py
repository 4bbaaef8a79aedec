"""A disk that records its operations, and the directories that a power cut could leave.

A write is durable after the sync of its file. A created, renamed or deleted name is durable after the sync of its
directory. Before that, each operation may be lost independently of the others, and a write may be torn. Commits of the
database are complete and in order; these tests rely on SQLite for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from puf_common.files.durable import Bytes
from puf_server.storage.durable import Disk

_NAMES = ("create", "rename", "rename_dir", "link", "unlink", "mkdir")
# A torn write: its first half; the half and zeros; the half and garbage.
_TORN = ("half", "zeroed", "garbled")

# The sync that a mutant omits: operation, place, and the operation that it would make durable.
Site = tuple[str, str, str]


@dataclass(frozen=True)
class Op:
    kind: str
    # Relative to the recorder's root. The target of a rename is in `to`.
    path: str = ""
    to: str = ""
    inode: int = 0
    offset: int = 0
    data: bytes = b""
    # The acknowledged fact.
    fact: tuple[object, ...] = ()

    @property
    def folder(self) -> str:
        """The directory of the name that this operation adds or removes."""
        return str(Path(self.to or self.path).parent)


@dataclass
class Recorder(Disk):
    """Writes to `root` and records. `without` names a sync that is omitted, as in a program that lacks it."""

    root: Path
    without: Site | None = None
    ops: list[Op] = field(default_factory=list)
    sites: dict[Site, int] = field(default_factory=dict)
    phase: str = "init"
    _inodes: dict[int, tuple[int, str]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    _last: dict[str, str] = field(default_factory=dict)

    def create(self, path: Path, mode: int = 0o600) -> int:
        handle = super().create(path, mode)
        inode = len(self._sizes) + 1
        self._inodes[handle], self._sizes[inode] = (inode, self._name(path)), 0
        self._log(Op("create", self._name(path), inode=inode))
        return handle

    def write(self, handle: int, data: Bytes) -> None:
        super().write(handle, data)
        inode, name = self._inodes[handle]
        self._log(Op("write", name, inode=inode, offset=self._sizes[inode], data=bytes(data)))
        self._sizes[inode] += len(data)

    def fsync(self, handle: int) -> None:
        inode, name = self._inodes[handle]
        # Files of the state directory are distinguished by name, those in its folders by their folder.
        what = name.split("/")[1] if name.count("/") > 1 else name.split("/")[-1].rsplit(".", 2)[0]
        if self._wanted(("fsync", what, self.phase)):
            self._log(Op("fsync", name, inode=inode))

    def close(self, handle: int) -> None:
        super().close(handle)
        del self._inodes[handle]

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        if target.is_dir():
            self._log(Op("rename_dir", self._name(source), to=self._name(target)))
        else:
            self._log(Op("rename", self._name(source), to=self._name(target), inode=self._inode(source)))

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self._log(Op("link", self._name(source), to=self._name(target), inode=self._inode(source)))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._log(Op("unlink", self._name(path)))

    def mkdir(self, path: Path) -> None:
        super().mkdir(path)
        self._log(Op("mkdir", self._name(path)))

    def fsync_dir(self, directory: Path) -> None:
        name = self._name(directory)
        if self._wanted(("fsync_dir", name, f"{self.phase} after {self._last.get(name, 'nothing')}")):
            self.ops.append(Op("fsync_dir", name))

    def commit(self, snapshot: bytes) -> None:
        self.ops.append(Op("commit", data=snapshot))

    def ack(self, *fact: object) -> None:
        """A caller got this answer: from here on it must hold after every crash."""
        self.ops.append(Op("ack", fact=fact))

    def _log(self, op: Op) -> None:
        self.ops.append(op)
        if op.kind in _NAMES:
            self._last[op.folder] = op.kind

    def _inode(self, path: Path) -> int:
        """The inode by its path, because the handle is closed."""
        return next(op.inode for op in reversed(self.ops) if op.kind == "create" and op.path == self._name(path))

    def _wanted(self, site: Site) -> bool:
        self.sites[site] = self.sites.get(site, 0) + 1
        return site != self.without

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))


@dataclass(frozen=True)
class CrashState:
    """A directory that may exist after a power cut, and the facts acknowledged before it."""

    prefix: int
    variant: str
    files: dict[str, bytes]
    folders: frozenset[str]
    database: bytes | None
    facts: tuple[tuple[object, ...], ...]
    # Names whose deletion was acknowledged.
    deleted: frozenset[str]

    @property
    def signature(self) -> bytes:
        sha = hashlib.sha256(repr((sorted(self.folders), len(self.facts), sorted(self.deleted))).encode())
        for name, content in sorted(self.files.items()):
            sha.update(f"|{name}|{len(content)}|".encode() + content)
        sha.update(self.database or b"none")
        return sha.digest()

    def build(self, root: Path) -> None:
        """Writes the directory to disk."""
        for folder in sorted(self.folders):
            (root / folder).mkdir()
        for name, content in self.files.items():
            (root / name).write_bytes(content)
        if self.database is not None and "state" in self.folders:
            (root / "state" / "state.db").write_bytes(self.database)


def crash_states(ops: list[Op]) -> Iterator[CrashState]:
    """The states after every prefix of operations, with each choice of lost operations that are not durable."""
    for prefix in range(len(ops) + 1):
        done = ops[:prefix]
        pending = [i for i in range(prefix) if not _durable(done, i)]
        data = [i for i in pending if done[i].kind == "write"]
        names = [i for i in pending if done[i].kind != "write"]
        variants: list[tuple[str, list[int]]] = [("kept", [])]
        if pending:
            variants.append(("lost", pending))
        if data and names:
            variants += [("names without data", data), ("data without names", names)]
        if len(pending) > 1:
            variants += [(f"lost {done[i].kind} {done[i].path}", [i]) for i in pending]
        for variant, lost in variants:
            yield _state(done, variant, frozenset(lost))
        # Every write that is not synced, not only the last: disks do not write in order.
        for index in data:
            for how in _TORN:
                yield _state(done, f"{how} write {done[index].path}", frozenset(), (index, how))


def _durable(done: list[Op], index: int) -> bool:
    op = done[index]
    if op.kind == "write":
        return any(later.kind == "fsync" and later.inode == op.inode for later in done[index:])
    if op.kind in _NAMES:
        return any(later.kind == "fsync_dir" and later.path == op.folder for later in done[index:])
    return True


def _torn(data: bytes, how: str) -> bytes:
    half = data[: len(data) // 2]
    rest = len(data) - len(half)
    return half + {"half": b"", "zeroed": bytes(rest), "garbled": b"\xa5" * rest}[how]


def _state(done: list[Op], variant: str, lost: frozenset[int], torn: tuple[int, str] | None = None) -> CrashState:
    entries: dict[str, int] = {}
    contents: dict[int, bytearray] = {}
    folders, unlinked = set[str](), set[str]()
    deleted = frozenset[str]()
    database, facts = None, []
    for index, op in enumerate(done):
        if op.kind == "commit":
            database = op.data
        elif op.kind == "ack":
            facts.append(op.fact)
            deleted = frozenset(unlinked)
        if op.kind == "unlink":
            unlinked.add(op.path)
        if index in lost:
            continue
        if op.kind == "mkdir":
            folders.add(op.path)
        elif op.kind == "create":
            entries[op.path] = op.inode
        elif op.kind == "rename":
            entries.pop(op.path, None)
            entries[op.to] = op.inode
        elif op.kind == "rename_dir":
            folders = {_moved(f, op) for f in folders}
            entries = {_moved(name, op): inode for name, inode in entries.items()}
        elif op.kind == "link":
            entries[op.to] = op.inode
        elif op.kind == "unlink":
            entries.pop(op.path, None)
        elif op.kind == "write":
            content = contents.setdefault(op.inode, bytearray())
            piece = _torn(op.data, torn[1]) if torn is not None and torn[0] == index else op.data
            # A gap: an earlier write was lost and this one was not.
            content.extend(bytes(max(0, op.offset - len(content))))
            content[op.offset : op.offset + len(piece)] = piece
    there: set[str] = set()
    for folder in sorted(folders):
        if str(Path(folder).parent) in {".", *there}:
            there.add(folder)
    files = {
        name: bytes(contents.get(inode, b""))
        for name, inode in entries.items()
        if str(Path(name).parent) in {".", *there}
    }
    return CrashState(len(done), variant, files, frozenset(there), database, tuple(facts), deleted)


def _moved(name: str, op: Op) -> str:
    """A name in a directory that was renamed, and that directory itself."""
    if name == op.path or name.startswith(f"{op.path}/"):
        return op.to + name[len(op.path) :]
    return name
