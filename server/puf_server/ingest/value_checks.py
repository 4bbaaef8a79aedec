"""An update's values as they go by: finite, no larger than allowed, integers that leave room to count on.

One pass over pieces of any size, while they are on their way to the disk. The first piece that is too much ends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import InvalidUpdate
from puf_common.tensors.chunks import Payload
from puf_common.tensors.manifest import UPDATE, Manifest, TensorRange
from puf_server.core.update_bounds import Norms

__all__ = ["UNBOUNDED", "UpdateCheck"]

UNBOUNDED = Norms(math.inf, math.inf)


class UpdateCheck:
    """`scale` is what the sender has multiplied the parameters with; norms are those before it."""

    def __init__(self, manifest: Manifest, *, scale: float = 1.0, most: Norms = UNBOUNDED) -> None:
        self._slots = [s for s in manifest.ranges(UPDATE) if s.nbytes]
        self._scale = abs(scale)
        self._most = most
        # Squares, as they arrive, by tensor and by what they are.
        self._squares = [0.0] * len(self._slots)
        self._parameters = 0.0
        self._buffers = 0.0
        self._index = 0
        self._at = 0
        self._rest = b""

    @property
    def norms(self) -> Norms:
        """Of what was seen so far."""
        return Norms(math.sqrt(self._parameters) / self._scale, math.sqrt(self._buffers))

    def feed(self, data: Payload) -> None:
        view = memoryview(data)
        while view:
            slot = self._slots[self._index]
            left = slot.offset + slot.nbytes - self._at
            piece, view = view[:left], view[left:]
            self._at += len(piece)
            look: Callable[[TensorRange, NDArray[Any]], None] = self._float if slot.spec.floating else self._integer
            self._whole(slot, piece, look)
            if self._at == slot.offset + slot.nbytes:
                self._index += 1
                self._rest = b""

    def _whole(self, slot: TensorRange, piece: memoryview, look: Callable[[TensorRange, NDArray[Any]], None]) -> None:
        """Pieces may end within a number; the rest of it comes with the next one."""
        size = slot.dtype.itemsize
        if self._rest:
            missing = size - len(self._rest)
            whole, piece = self._rest + bytes(piece[:missing]), piece[missing:]
            self._rest = b""
            if len(whole) < size:
                self._rest = whole
                return
            look(slot, np.frombuffer(whole, slot.dtype))
        cut = len(piece) - len(piece) % size
        self._rest = bytes(piece[cut:])
        if cut:
            look(slot, np.frombuffer(piece[:cut], slot.dtype))

    def _float(self, slot: TensorRange, values: NDArray[Any]) -> None:
        with np.errstate(all="ignore"):
            square = float(np.dot(values, values))
            if not math.isfinite(square):
                if not np.isfinite(values).all():
                    name = slot.spec.name
                    raise InvalidUpdate(f"tensor {name} has values that are not finite", tensor=name)
                # Finite, but too large for a sum in its own type.
                wide = values.astype(np.float64)
                square = float(np.dot(wide, wide))
        self._squares[self._index] += square
        if slot.spec.role == "parameter":
            self._parameters += square
            if self._parameters > (self._most.parameters * self._scale) ** 2:
                self._too_large("norm before scaling", "parameter", self.norms.parameters, self._most.parameters)
        else:
            self._buffers += square
            if self._buffers > self._most.buffers**2:
                self._too_large("norm of buffers", "buffer", self.norms.buffers, self._most.buffers)

    def _integer(self, slot: TensorRange, values: NDArray[Any]) -> None:
        """Counters take the maximum over clients: nobody may bring one to where the next step overflows."""
        if slot.dtype.itemsize < 4:
            return
        most = (1 << (8 * slot.dtype.itemsize - 1)) // 2
        if int(values.max()) > most or int(values.min()) < -most:
            raise InvalidUpdate(
                f"tensor {slot.spec.name} counts beyond {most}: the next step would overflow",
                tensor=slot.spec.name,
                bound=most,
            )

    def _too_large(self, what: str, role: str, norm: float, most: float) -> None:
        mine = [i for i, s in enumerate(self._slots) if s.spec.role == role and s.spec.floating]
        worst = self._slots[max(mine, key=lambda i: self._squares[i])].spec.name
        raise InvalidUpdate(
            f"the update's {what} reaches {norm:.4g}, allowed are {most:.4g} after recent rounds; most of it is in "
            f"tensor {worst}",
            tensor=worst,
            bound=f"{most:.6g}",
        )
