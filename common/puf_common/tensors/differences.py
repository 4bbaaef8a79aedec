"""A model from another model and the difference between them, for both kinds of differences of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import InvalidUpdate, TransferCorrupted
from puf_common.tensors.chunks import Payload
from puf_common.tensors.encodings import Expander, compacted
from puf_common.tensors.exact_difference import ExactDecoder
from puf_common.tensors.manifest import MODEL, Manifest
from puf_common.v1 import tensors_pb2 as pb


class Decoder(Protocol):
    """Takes the bytes of a difference in parts of any size."""

    def feed(self, data: Payload) -> Iterator[memoryview]:
        """The parts of the new model that are known after these bytes, in order. Use each before the next."""


def decoder(kind: int, manifest: Manifest, base: Payload) -> Decoder:
    """Raises TransferCorrupted for a kind that this version does not know."""
    if kind == pb.DIFFERENCE_KIND_EXACT:
        return ExactDecoder(manifest, base)
    if kind == pb.DIFFERENCE_KIND_STEP_I8:
        return StepDecoder(manifest, base)
    raise TransferCorrupted(f"this version does not know differences of kind {kind}")


class StepDecoder:
    """Adds a rounded step to a model: w + byte * scale in float32. All other tensors come as new values."""

    def __init__(self, manifest: Manifest, base: Payload) -> None:
        self._expander = Expander(manifest, "i8", MODEL)
        self._base = memoryview(base).cast("B")
        self._tensors = iter([t for t in manifest.ranges(MODEL) if t.nbytes])
        self._tensor = next(self._tensors, None)
        self._offset = 0

    def feed(self, data: Payload) -> Iterator[memoryview]:
        try:
            step = memoryview(self._expander.feed(data))
        except InvalidUpdate as error:
            raise TransferCorrupted(f"the difference cannot be applied: {error.message}") from None
        while step and self._tensor is not None:
            end = self._tensor.offset + self._tensor.nbytes
            part, step = step[: end - self._offset], step[end - self._offset :]
            yield self._applied(part) if compacted(self._tensor) else part
            self._offset += len(part)
            if self._offset == end:
                self._tensor = next(self._tensors, None)

    def _applied(self, part: memoryview) -> memoryview:
        old = np.frombuffer(self._base[self._offset : self._offset + len(part)], "<f4")
        # The digest shows whether a sum left the range.
        with np.errstate(over="ignore", invalid="ignore"):
            new: NDArray[np.float32] = np.add(old, np.frombuffer(part, "<f4"))
        return new.data.cast("B")
