"""Differences between models, as clients fetch them: a cache. Every file can be missing; clients then get whole models.

A file is named by both versions, the beginnings of their digests, the kind of difference and the digest of the file. It is
deleted as soon as one of the models is: see `model_versions.differences`.
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
from puf_server.storage.durable import Files, FileSource, NewFile, remove, sync_directory
from puf_server.storage.layout import difference_name
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

    def __init__(self, folder: Path, manifest: Manifest, files: Files, models: ModelFiles) -> None:
        self._folder = folder
        self._manifest = manifest
        self._files = files
        self._models = models

    def find(self, base: ModelVersion, model: ModelVersion) -> StoredDifference | None:
        """The stored difference, the shortest kind first."""
        if not self._folder.exists():
            return None
        names = self._files.listdir(self._folder)
        for kind in (STEP, EXACT):
            begin = f"{difference_name(base, model)}.{kind}."
            for name in names:
                if name.startswith(begin) and not name.endswith(".part"):
                    path = self._folder / name
                    return StoredDifference(path, base.version, kind, name.removeprefix(begin), path.stat().st_size)
        return None

    def read(self, difference: StoredDifference) -> FileSource:
        return self._files.read(difference.path)

    def new(self, base: ModelVersion, version: int, kind: str) -> DifferenceFile:
        """A difference that is being written."""
        if not self._folder.exists():
            self._files.mkdir(self._folder)
            sync_directory(self._folder.parent, self._files)
        path = self._folder / f"v{base.version:06d}-v{version:06d}.{kind}.part"
        remove(path, self._files)
        return DifferenceFile(NewFile(path, self._files), base, kind)

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
            made = file.publish(model)
        except BaseException:
            file.discard()
            raise
        if wanted():
            return made
        remove(made.path, self._files)
        sync_directory(self._folder, self._files)
        return None


class DifferenceFile:
    """A difference that is being written. It gets its name when its digest is known."""

    def __init__(self, file: NewFile, base: ModelVersion, kind: str) -> None:
        self._file = file
        self._base = base
        self._kind = kind
        self._hash = hasher("blake3")
        self._nbytes = 0

    def write(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._file.write(data)
        self._nbytes += len(data)

    def publish(self, model: ModelVersion) -> StoredDifference:
        digest = self._hash.hexdigest()
        path = self._file.path.with_name(f"{difference_name(self._base, model)}.{self._kind}.{digest}")
        self._file.publish(path)
        return StoredDifference(path, self._base.version, self._kind, digest, self._nbytes)

    def discard(self) -> None:
        self._file.discard()
