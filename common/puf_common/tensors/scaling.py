"""The flip: the only place where an update is multiplied, used alike by clients and server.

PUF turns a target's ordinary update into unlearning by a negative scale. Whichever side does it, the product is
rounded to the update's own type here, so that both give the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puf_common.tensors.manifest import UPDATE, Manifest

__all__ = ["scale_block", "scale_update"]


def scale_block(block: NDArray[np.floating], scale: float) -> NDArray[np.floating]:
    """`scale * block` in the block's own type; the scale is taken as a double and the product rounded once."""
    if scale == 1.0:
        return block
    return (block.astype(np.float64) * scale).astype(block.dtype)


def scale_update(manifest: Manifest, payload: bytearray, scale: float, block: int = 1 << 16) -> None:
    """Multiplies the parameters of an update in place; buffers are never negated or scaled."""
    if scale == 1.0:
        return
    for slot in manifest.ranges(UPDATE):
        if slot.spec.role != "parameter":
            continue
        tensor = np.frombuffer(payload, slot.dtype, slot.spec.size, slot.offset)
        for start in range(0, tensor.size, block):
            part = tensor[start : start + block]
            part[...] = scale_block(part, scale)
