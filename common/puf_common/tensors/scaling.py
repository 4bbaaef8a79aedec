"""Scaling of updates: the only place where an update is multiplied, for clients and server.

PUF negates a target's update by a negative scale. This module rounds the product to the type of the update, so that
clients and server compute the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puf_common.tensors.manifest import UPDATE, Manifest


def scale_block(block: NDArray[np.floating], scale: float) -> NDArray[np.floating]:
    """`scale * block` in the type of the block: computed in float64 and rounded once."""
    if scale == 1.0:
        return block
    return (block.astype(np.float64) * scale).astype(block.dtype)


def scale_update(manifest: Manifest, payload: bytearray, scale: float, block: int = 1 << 16) -> None:
    """Multiplies the parameters of an update in place. Buffers are never scaled."""
    if scale == 1.0:
        return
    for tensor in manifest.ranges(UPDATE):
        if tensor.spec.role != "parameter":
            continue
        values = np.frombuffer(payload, tensor.dtype, tensor.spec.size, tensor.offset)
        for start in range(0, values.size, block):
            part = values[start : start + block]
            part[...] = scale_block(part, scale)
