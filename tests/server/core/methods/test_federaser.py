"""FedEraser: calibration of updates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from puf_common.tensors.manifest import TensorSpec
from puf_server.core.methods.blocks import TensorBlock, UpdateBlock
from puf_server.core.methods.federaser import FedEraserOptions, calibrated, factors

WEIGHT = TensorSpec("w", "f32", (2,))


def vector(x: float, y: float) -> NDArray[np.float32]:
    return np.array([x, y], "f4")


def norm(v: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(v.astype("f8")))


def stepped(
    *clients: tuple[NDArray[np.float32], NDArray[np.float32], int], w: NDArray[np.float32] | None = None
) -> NDArray[np.float64]:
    """One calibrated round over (stored update, new update, samples) of clients a, b, ..."""
    updates = [
        UpdateBlock(client=chr(97 + i), samples=n, u=fresh, norms=(norm(fresh),))
        for i, (_, fresh, n) in enumerate(clients)
    ]
    by = {
        p.client: f
        for p, (stored, _, _) in zip(updates, clients, strict=True)
        if (f := factors((norm(stored),), p.norms, per_tensor=False)) is not None
    }
    n = sum(p.samples for p in updates if p.client in by)
    base = vector(0, 0) if w is None else w
    return calibrated(TensorBlock(tensor=WEIGHT, parameter=0, w=base, others={}, updates=updates), by, n)


def test_the_worked_steps_and_their_mean() -> None:
    a, b = (vector(3, 4), vector(0, 0.5), 1), (vector(0, 1), vector(2, 0), 3)
    assert stepped(a) == pytest.approx([0, 5])
    assert stepped(b) == pytest.approx([1, 0])
    assert stepped(a, b) == pytest.approx([0.75, 1.25])
    assert stepped(a, b, w=vector(1, 1)) == pytest.approx([1.75, 2.25])


_VALUES = st.floats(-100, 100, width=32).filter(lambda v: abs(v) > 1e-3)


@given(stored=st.tuples(_VALUES, _VALUES), fresh=st.tuples(_VALUES, _VALUES), scale=st.sampled_from([0.25, 2.0, 64.0]))
def test_the_length_is_the_stored_one_and_the_direction_the_new_one(
    stored: tuple[float, float], fresh: tuple[float, float], scale: float
) -> None:
    u, v = vector(*stored), vector(*fresh)
    step = stepped((u, v, 7))
    assert float(np.linalg.norm(step)) == pytest.approx(norm(u))
    assert float(step @ v) / float(np.linalg.norm(step)) / norm(v) == pytest.approx(1)
    assert stepped((u, v * np.float32(scale), 7)) == pytest.approx(step)
    assert stepped((u, u, 7)) == pytest.approx(u.astype("f8"))


def test_an_update_of_length_zero_is_left_out() -> None:
    nothing = (vector(3, 4), vector(0, 0), 1)
    assert stepped(nothing, (vector(0, 1), vector(2, 0), 3)) == pytest.approx([1, 0])


def test_lengths_of_every_tensor_or_of_the_whole() -> None:
    assert factors((3, 4), (0.5, 0.5), per_tensor=True) == (6, 8)
    assert factors((3, 4), (0.6, 0.8), per_tensor=False) == pytest.approx((5, 5))
    assert factors((3, 4), (0.5, 0.0), per_tensor=True) == (6, 0)
    assert (FedEraserOptions().delta_t, FedEraserOptions().epochs, FedEraserOptions().per_tensor) == (1, 0.5, False)
