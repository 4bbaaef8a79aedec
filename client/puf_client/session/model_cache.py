"""The models that a session fetched last, checked against the federation's manifest."""

from __future__ import annotations

from collections import OrderedDict

from puf_client.transport.base import Transport
from puf_common.errors import TransferCorrupted
from puf_common.tensors.chunks import Payload
from puf_common.tensors.manifest import MODEL, Manifest

__all__ = ["ModelCache"]

_MODELS_KEPT = 2


class ModelCache:
    """Fetches models by version and keeps the two newest in memory."""

    def __init__(self, transport: Transport, manifest: Manifest) -> None:
        self._transport = transport
        self._manifest = manifest
        self._models: OrderedDict[int, Payload] = OrderedDict()

    def fetch(self, version: int) -> memoryview:
        """Returns the bytes of a model, read-only."""
        if version not in self._models:
            header, payload = self._transport.fetch_model(version)
            self._manifest.require(header.manifest_fingerprint, f"model {version}")
            if header.version != version or len(payload) != self._manifest.nbytes(MODEL):
                raise TransferCorrupted(
                    f"requested model {version}, received {len(payload)} bytes of model {header.version}"
                )
            self._models[version] = payload
            while len(self._models) > _MODELS_KEPT:
                self._models.popitem(last=False)
        self._models.move_to_end(version)
        return memoryview(self._models[version]).toreadonly()

    def clear(self) -> None:
        """Frees the memory of all models."""
        self._models.clear()
