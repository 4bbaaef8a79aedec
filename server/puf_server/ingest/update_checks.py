"""Checks the values of an update while it arrives: finite, norms within bounds, integers that cannot overflow.

One pass over pieces of any size, before they are written. The first value out of bounds ends it.
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
from puf_server.core.norm_bounds import Norms

UNBOUNDED = Norms(math.inf, math.inf)


class UpdateCheck:
    """Raises InvalidUpdate at the first value out of bounds. `scale` is the sender's factor; norms are without it."""

    def __init__(self, manifest: Manifest, *, scale: float = 1.0, most: Norms = UNBOUNDED) -> None:
        self._ranges = [s for s in manifest.ranges(UPDATE) if s.nbytes]
        # A skipped dose is scaled by 0: its norm is 0 under any factor.
        self._scale = abs(scale) or 1.0
        self._most = most
        # Sums of squares so far: by tensor, of all parameters, of all floating buffers.
        self._squares = [0.0] * len(self._ranges)
        self._parameters = 0.0
        self._buffers = 0.0
        self._index = 0
        self._at = 0
        self._rest = b""

    @property
    def norms(self) -> Norms:
        """The norms of the bytes so far."""
        return Norms(math.sqrt(self._parameters) / self._scale, math.sqrt(self._buffers))

    def feed(self, data: Payload) -> None:
        """Checks the next bytes of the update."""
        with np.errstate(all="ignore"):
            self._feed(memoryview(data))

    def _feed(self, view: memoryview) -> None:
        while view:
            tensor = self._ranges[self._index]
            left = tensor.offset + tensor.nbytes - self._at
            piece, view = view[:left], view[left:]
            self._at += len(piece)
            look: Callable[[TensorRange, NDArray[Any]], None] = self._float if tensor.spec.floating else self._integer
            self._whole(tensor, piece, look)
            if self._at == tensor.offset + tensor.nbytes:
                self._index += 1
                self._rest = b""

    def _whole(self, tensor: TensorRange, piece: memoryview, look: Callable[[TensorRange, NDArray[Any]], None]) -> None:
        """Gives whole numbers to `look`. A piece may end within a number; the next piece brings the rest."""
        size = tensor.dtype.itemsize
        if self._rest:
            missing = size - len(self._rest)
            whole, piece = self._rest + bytes(piece[:missing]), piece[missing:]
            self._rest = b""
            if len(whole) < size:
                self._rest = whole
                return
            look(tensor, np.frombuffer(whole, tensor.dtype))
        cut = len(piece) - len(piece) % size
        self._rest = bytes(piece[cut:])
        if cut:
            look(tensor, np.frombuffer(piece[:cut], tensor.dtype))

    def _float(self, tensor: TensorRange, values: NDArray[Any]) -> None:
        square = float(np.dot(values, values))
        if not math.isfinite(square):
            if not np.isfinite(values).all():
                name = tensor.spec.name
                raise InvalidUpdate(f"tensor {name} has values that are not finite", tensor=name)
            # The values are finite; their squares overflow in this type.
            wide = values.astype(np.float64)
            square = float(np.dot(wide, wide))
        self._squares[self._index] += square
        if tensor.spec.role == "parameter":
            self._parameters += square
            if self._parameters > (self._most.parameters * self._scale) ** 2:
                self._too_large("norm before scaling", "parameter", self.norms.parameters, self._most.parameters)
        else:
            self._buffers += square
            if self._buffers > self._most.buffers**2:
                self._too_large("norm of buffers", "buffer", self.norms.buffers, self._most.buffers)

    def _integer(self, tensor: TensorRange, values: NDArray[Any]) -> None:
        """The model takes the maximum of counters over clients, so that no client may send one near an overflow."""
        if tensor.dtype.itemsize < 4:
            return
        most = (1 << (8 * tensor.dtype.itemsize - 1)) // 2
        if int(values.max()) > most or int(values.min()) < -most:
            raise InvalidUpdate(
                f"tensor {tensor.spec.name} counts beyond {most}: the next step would overflow",
                tensor=tensor.spec.name,
                bound=most,
            )

    def _too_large(self, what: str, role: str, norm: float, most: float) -> None:
        mine = [i for i, s in enumerate(self._ranges) if s.spec.role == role and s.spec.floating]
        worst = self._ranges[max(mine, key=lambda i: self._squares[i])].spec.name
        raise InvalidUpdate(
            f"the update's {what} reaches {norm:.4g}, the limit is {most:.4g}; most of it is in tensor {worst}",
            tensor=worst,
            bound=f"{most:.6g}",
        )
