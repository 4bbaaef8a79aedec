"""Differences between models, as clients fetch them: a cache. Every file can be missing; clients then get whole models.

A file is named by both versions, the beginnings of their digests, the kind of difference and the digest of the file. It is
not synced: a file that a power cut left incomplete does not match its name and is deleted when it is found. All files of a
model are deleted as soon as the model is withdrawn or deleted: see `model_versions.differences`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from puf_common.tensors.digests import hasher
from puf_common.tensors.exact_difference import encoded
from puf_common.tensors.manifest import MODEL, Manifest
from puf_server.core.state.models import ModelVersion
from puf_server.failpoints import hit
from puf_server.storage.layout import DIFFERENCES, difference_name
from puf_server.storage.model_files import ModelFiles
from puf_server.storage.stored_files import StoredFile, StoredFiles

# Kinds, in the order of preference.
STEP, EXACT = "i8", "exact"


@dataclass(frozen=True, slots=True)
class StoredDifference:
    name: str
    base: int
    kind: str
    digest: str
    nbytes: int


class DifferenceFiles:
    """Safe to use from any thread."""

    def __init__(self, files: StoredFiles, manifest: Manifest, models: ModelFiles) -> None:
        self._files = files
        self._manifest = manifest
        self._models = models

    def find(self, base: ModelVersion, model: ModelVersion) -> StoredDifference | None:
        """The stored difference, the shortest kind first. Reads the file, and deletes it if it is damaged."""
        names = self._files.names(DIFFERENCES)
        for kind in (STEP, EXACT):
            between = difference_name((base.version, model.version), (base.digest, model.digest))
            begin = f"{DIFFERENCES}/{between}.{kind}."
            for name in (name for name in names if name.startswith(begin)):
                digest = name.removeprefix(begin)
                with self._files.read(name) as source:
                    if source.digest("blake3") == digest:
                        return StoredDifference(name, base.version, kind, digest, source.nbytes)
                self._files.delete([name])
        return None

    def read(self, difference: StoredDifference) -> StoredFile:
        return self._files.read(difference.name)

    def new(self, base: ModelVersion, version: int, kind: str) -> DifferenceFile:
        """A difference that is being written."""
        return DifferenceFile(self._files, base, version, kind)

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
        hit("difference.made")
        if wanted():
            return made
        self._files.delete([made.name])
        return None


class DifferenceFile:
    """A difference that is being written. It gets its name when its digest is known."""

    def __init__(self, files: StoredFiles, base: ModelVersion, version: int, kind: str) -> None:
        self._base = base
        self._kind = kind
        self._hash = hasher("blake3")
        self._nbytes = 0
        self._file = files.new(f"{DIFFERENCES}/v{base.version:06d}-v{version:06d}.{kind}", cache=True)

    def write(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._file.write(data)
        self._nbytes += len(data)

    def publish(self, version: int, model_digest: str) -> StoredDifference:
        """Names the file by the model that it leads to."""
        digest = self._hash.hexdigest()
        between = difference_name((self._base.version, version), (self._base.digest, model_digest))
        name = f"{DIFFERENCES}/{between}.{self._kind}.{digest}"
        self._file.publish(name)
        return StoredDifference(name, self._base.version, self._kind, digest, self._nbytes)

    def discard(self) -> None:
        """Deletes the file unless it was published."""
        self._file.discard()
