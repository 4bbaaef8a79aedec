"""The files of model versions: read, write, and verify them."""

from __future__ import annotations

from pathlib import Path

from puf_common.errors import PufError, StorageCorrupted
from puf_common.tensors.manifest import Manifest
from puf_common.tensors.model_file import read_manifest, read_payload
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.state import State
from puf_server.core.unlearning.model_versions import made_by
from puf_server.storage.durable import Files, FileSource, NewFile
from puf_server.storage.layout import draft_name, model_name


class ModelFiles:
    """Safe to use from any thread."""

    def __init__(self, folder: Path, manifest: Manifest, files: Files, owner: str = "") -> None:
        self._folder = folder
        self._owner = owner
        self._manifest = manifest
        self._files = files

    def path(self, model: ModelVersion) -> Path:
        return self._folder / model_name(model.version, model.digest)

    def read(self, model: ModelVersion) -> FileSource:
        """Random access to a model's payload."""
        path = self.path(model)
        try:
            return self._files.read(path, path.stat().st_size - model.nbytes)
        except FileNotFoundError:
            raise StorageCorrupted(f"the file of model {model.version} is missing: {path.name}") from None

    def payload(self, model: ModelVersion) -> bytearray:
        """A model's whole payload in memory."""
        return read_payload(self.path(model), self._manifest)

    def new(self, version: int) -> NewFile:
        """A model file being written. `publish` gives it its name once its digest is known."""
        # A process that lost the right to fold may still write the same version.
        path = self._folder / draft_name(f"v{version:06d}", self._owner)
        return NewFile(path, self._files, "model")

    def publish(self, file: NewFile, version: int, digest: str) -> None:
        file.publish(self._folder / model_name(version, digest))

    def require(self, state: State) -> None:
        """Raises where a model file is missing or damaged. Only files in use are read whole.

        Reading all of them would make a start take minutes. A client that fetches an older model checks its digest.
        """
        used = {state.version}
        used |= {state.round.base} if state.round else set()
        used |= {state.evaluation.version} if state.evaluation else set()
        used |= set(made_by(state.job)) if state.job else set()
        for model in state.models.values():
            if model.status is not ModelStatus.DELETED:
                self._require(model, whole=model.version in used)

    def _require(self, model: ModelVersion, *, whole: bool) -> None:
        path = self.path(model)
        if not path.exists():
            raise StorageCorrupted(f"the file of model {model.version} is missing: {path}; bring it back from a backup")
        try:
            stored, _, begins_at = read_manifest(path)
            self._manifest.require(stored.fingerprint, path.name)
            if whole:
                with self._files.read(path, begins_at) as source:
                    if source.digest() != model.digest:
                        raise StorageCorrupted("it does not match its digest")
        except PufError as error:
            raise StorageCorrupted(
                f"the file of model {model.version} is damaged: {error.message}; bring {path} back from a backup"
            ) from None
