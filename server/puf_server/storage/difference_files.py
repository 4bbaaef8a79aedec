"""Differences between models, as clients fetch them: a cache. Every file can be missing; clients then get whole models.

A file is named by both versions, the beginnings of their digests, the kind of difference and the digest of the file. It is
not synced: a file that a power cut left incomplete does not match its name and is deleted when it is found. All files of a
model are deleted as soon as the model is withdrawn or deleted: see `model_versions.differences`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from puf_common.tensors.digests import hasher
from puf_common.tensors.exact_difference import encoded
from puf_common.tensors.manifest import MODEL, Manifest
from puf_server.core.state.models import ModelVersion
from puf_server.storage.durable import Files, FileSource, remove
from puf_server.storage.layout import difference_name, draft_name
from puf_server.storage.model_files import ModelFiles

# Kinds, in the order of preference.
STEP, EXACT = "i8", "exact"


@dataclass(frozen=True, slots=True)
class StoredDifference:
    path: Path
    base: int
    kind: str
    digest: str
    nbytes: int


class DifferenceFiles:
    """Safe to use from any thread."""

    def __init__(self, folder: Path, manifest: Manifest, files: Files, models: ModelFiles, owner: str) -> None:
        self._folder = folder
        self._owner = owner
        self._manifest = manifest
        self._files = files
        self._models = models

    def find(self, base: ModelVersion, model: ModelVersion) -> StoredDifference | None:
        """The stored difference, the shortest kind first. Reads the file, and deletes it if it is damaged."""
        if not self._folder.exists():
            return None
        names = self._files.listdir(self._folder)
        for kind in (STEP, EXACT):
            begin = f"{difference_name((base.version, model.version), (base.digest, model.digest))}.{kind}."
            for path in (self._folder / name for name in names if name.startswith(begin)):
                digest = path.name.removeprefix(begin)
                with self._files.read(path) as source:
                    if source.digest("blake3") == digest:
                        return StoredDifference(path, base.version, kind, digest, source.nbytes)
                remove(path, self._files)
        return None

    def read(self, difference: StoredDifference) -> FileSource:
        return self._files.read(difference.path)

    def new(self, base: ModelVersion, version: int, kind: str) -> DifferenceFile:
        """A difference that is being written."""
        if not self._folder.exists():
            self._files.mkdir(self._folder)
        # Another process may write the same difference.
        path = self._folder / draft_name(f"v{base.version:06d}-v{version:06d}.{kind}", self._owner)
        return DifferenceFile(path, self._files, base, kind)

    def make(self, base: ModelVersion, model: ModelVersion, wanted: Callable[[], bool]) -> StoredDifference | None:
        """Writes the exact difference. None: it would not be shorter than the model, or is no longer wanted.

        `wanted` is asked once more after the file has its name. A model that is withdrawn meanwhile therefore leaves none:
        the deletion that follows the withdrawal sees the file, or this call does.
        """
        file, written = self.new(base, model.version, EXACT), 0
        try:
            with ExitStack() as stack:
                old, new = (stack.enter_context(self._models.read(m)) for m in (base, model))
                for part in encoded(self._manifest, old.read_into, new.read_into):
                    file.write(part)
                    written += len(part)
                    if written >= self._manifest.nbytes(MODEL) or not wanted():
                        file.discard()
                        return None
            made = file.publish(model.version, model.digest)
        except BaseException:
            file.discard()
            raise
        if wanted():
            return made
        remove(made.path, self._files)
        return None


class DifferenceFile:
    """A difference that is being written. It gets its name when its digest is known."""

    def __init__(self, path: Path, files: Files, base: ModelVersion, kind: str) -> None:
        self._path = path
        self._files = files
        self._base = base
        self._kind = kind
        self._hash = hasher("blake3")
        self._nbytes = 0
        self._handle: int | None = files.create(path, 0o600)

    def write(self, data: bytes | memoryview) -> None:
        assert self._handle is not None
        self._hash.update(data)
        self._files.write(self._handle, data)
        self._nbytes += len(data)

    def publish(self, version: int, model_digest: str) -> StoredDifference:
        """Names the file by the model that it leads to."""
        digest = self._hash.hexdigest()
        name = difference_name((self._base.version, version), (self._base.digest, model_digest))
        path = self._path.with_name(f"{name}.{self._kind}.{digest}")
        self._close()
        self._files.rename(self._path, path)
        return StoredDifference(path, self._base.version, self._kind, digest, self._nbytes)

    def discard(self) -> None:
        """Deletes the file unless it was published."""
        self._close()
        remove(self._path, self._files)

    def _close(self) -> None:
        # Close once: the system may have given the number to another file since.
        handle, self._handle = self._handle, None
        if handle is not None:
            self._files.close(handle)
