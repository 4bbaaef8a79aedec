"""How far the model of a round lies from the model of the same round without one of its clients.

    eta_s * p_c / (1 - p_c) * |Delta_c - sum_i p_i Delta_i|

This is the distance of sum_i p_i Delta_i from the average of the others. A client that was alone moved the model by
eta_s * |Delta_c|.
"""

from __future__ import annotations

from contextlib import ExitStack
from math import sqrt

import numpy as np

from puf_common.tensors.manifest import UPDATE
from puf_server.aggregation.fold import read_block
from puf_server.core.state.rounds import Round
from puf_server.storage.state_store import Store

_NUMBERS = 1 << 22


def spreads(store: Store, current: Round, server_lr: float) -> dict[str, float]:
    """The distance for each update of an ordinary round, by the key of its assignment."""
    keys = sorted(current.received)
    share = np.array([current.received[key].samples for key in keys], np.float64)
    share /= share.sum()
    squares = np.zeros(len(keys), np.float64)
    size = max(1, _NUMBERS // max(1, len(keys)))
    with ExitStack() as stack:
        sources = [stack.enter_context(store.spool.read(current, key)) for key in keys]
        for tensor in store.manifest.ranges(UPDATE):
            if tensor.spec.role != "parameter":
                continue
            for start in range(0, tensor.spec.size, size):
                count = min(size, tensor.spec.size - start)
                rows = np.stack([read_block(s, tensor, start, count).astype(np.float64) for s in sources])
                if len(keys) > 1:
                    rows -= np.multiply(rows, share[:, None]).sum(0)
                squares += np.square(rows).sum(1)
    alone = len(keys) == 1
    return {
        key: server_lr * (1.0 if alone else float(p / (1 - p))) * sqrt(float(square))
        for key, p, square in zip(keys, share, squares, strict=True)
    }
