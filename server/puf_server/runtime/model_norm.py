"""The Euclidean norm of a model's parameters."""

from __future__ import annotations

import math
import threading

import numpy as np

from puf_common.errors import PufError
from puf_common.logging import get_logger
from puf_common.tensors.manifest import MODEL
from puf_server.core.state.models import ModelVersion
from puf_server.engine.engine import Engine

__all__ = ["ModelNorm"]

_BLOCK = 1 << 20
log = get_logger(__name__)


class ModelNorm:
    """Computes the norm once per version, block by block."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._known: tuple[int, float] | None = None

    def of(self, model: ModelVersion) -> float | None:
        """The norm; None if the file cannot be read. A version can be deleted while it is read."""
        with self._lock:
            if self._known is None or self._known[0] != model.version:
                try:
                    self._known = (model.version, math.sqrt(self._squares(model)))
                except (OSError, PufError) as error:
                    log.warning("model norm not computed", version=model.version, error=str(error))
                    return None
            return self._known[1]

    def _squares(self, model: ModelVersion) -> float:
        total = 0.0
        with self._engine.store.models.read(model) as source:
            for tensor in self._engine.manifest.ranges(MODEL):
                if tensor.spec.role != "parameter":
                    continue
                for start in range(0, tensor.nbytes, _BLOCK):
                    block = bytearray(min(_BLOCK, tensor.nbytes - start))
                    source.read_into(tensor.offset + start, memoryview(block))
                    values = np.frombuffer(block, tensor.dtype).astype(np.float64)
                    total += float(values @ values)
        return total
