"""The files of model versions: read, write, and verify them."""

from __future__ import annotations

from puf_common.errors import PufError, StorageCorrupted
from puf_common.tensors.manifest import Manifest
from puf_common.tensors.model_file import parse_header
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.state import State
from puf_server.core.unlearning.model_versions import made_by
from puf_server.storage.layout import MODELS, model_name
from puf_server.storage.stored_files import NewStoredFile, StoredFile, StoredFiles


class ModelFiles:
    """Safe to use from any thread."""

    def __init__(self, files: StoredFiles, manifest: Manifest) -> None:
        self._files = files
        self._manifest = manifest

    def where(self, model: ModelVersion) -> str:
        return self._files.where(_name(model.version, model.digest))

    def read(self, model: ModelVersion) -> StoredFile:
        """Random access to a model's payload."""
        try:
            return self._files.read(_name(model.version, model.digest), model.nbytes)
        except FileNotFoundError:
            raise StorageCorrupted(f"the file of model {model.version} is missing: {self.where(model)}") from None

    def payload(self, model: ModelVersion) -> bytearray:
        """A model's whole payload in memory."""
        payload = bytearray(model.nbytes)
        with self.read(model) as source:
            source.read_into(0, memoryview(payload))
        return payload

    def new(self, version: int) -> NewStoredFile:
        """A model file being written. `publish` gives it its name once its digest is known."""
        return self._files.new(f"{MODELS}/v{version:06d}", "model")

    def publish(self, file: NewStoredFile, version: int, digest: str) -> None:
        file.publish(_name(version, digest))

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
        name, where = _name(model.version, model.digest), self.where(model)
        try:
            with self._files.read(name) as source:
                if source.nbytes < model.nbytes:
                    raise StorageCorrupted(f"it is cut off: {source.nbytes} bytes, its tensors have {model.nbytes}")
                header = bytearray(source.nbytes - model.nbytes)
                source.read_into(0, memoryview(header))
                stored = parse_header(bytes(header), source.nbytes, where)
            self._manifest.require(stored.fingerprint, where)
            if whole:
                with self._files.read(name, model.nbytes) as payload:
                    if payload.digest() != model.digest:
                        raise StorageCorrupted("it does not match its digest")
        except FileNotFoundError:
            raise StorageCorrupted(
                f"the file of model {model.version} is missing: {where}; bring it back from a backup"
            ) from None
        except PufError as error:
            raise StorageCorrupted(
                f"the file of model {model.version} is damaged: {error.message}; bring {where} back from a backup"
            ) from None


def _name(version: int, digest: str) -> str:
    return f"{MODELS}/{model_name(version, digest)}"
