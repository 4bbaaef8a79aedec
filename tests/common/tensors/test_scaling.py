"""Scaling an update: exact rounding, parameters only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from puf_common.tensors.manifest import UPDATE, Manifest, TensorSpec
from puf_common.tensors.scaling import scale_block, scale_update

MANIFEST = Manifest(
    (
        TensorSpec("weight", "f32", (5,)),
        TensorSpec("mean", "f32", (2,), "buffer"),
        TensorSpec("steps", "i64", (), "buffer"),
        TensorSpec("bias", "f64", (3,)),
    )
)
VALUES = arrays(np.float32, 5, elements=st.floats(-1e6, 1e6, width=32))


@given(VALUES, st.floats(-100, 100))
def test_a_product_is_rounded_once(values: np.ndarray, scale: float) -> None:
    scaled = scale_block(values, scale)
    assert scaled.dtype == np.float32
    # A Python float is a double.
    assert [float(v) for v in scaled] == [float(np.float32(float(v) * scale)) for v in values]


def test_scale_1_copies_nothing() -> None:
    block = np.ones(3, np.float32)
    assert scale_block(block, 1.0) is block


@pytest.mark.parametrize("block", [1, 2, 100])
def test_parameters_are_scaled_in_place_and_buffers_stay(block: int) -> None:
    payload = bytearray(MANIFEST.nbytes(UPDATE))
    views = MANIFEST.views(payload, UPDATE)
    for view in views.values():
        view[...] = 3
    scale_update(MANIFEST, payload, -2.0, block)
    assert {name: set(np.ravel(view).tolist()) for name, view in views.items()} == {
        "weight": {-6.0},
        "mean": {3.0},
        "steps": {3},
        "bias": {-6.0},
    }


def test_the_block_size_does_not_change_the_bits() -> None:
    rng = np.random.default_rng(1)
    base = bytearray(MANIFEST.nbytes(UPDATE))
    for name, view in MANIFEST.views(base, UPDATE).items():
        if name != "steps":
            view[...] = rng.normal(size=view.shape)
    whole, blocks = bytearray(base), bytearray(base)
    scale_update(MANIFEST, whole, -0.3)
    scale_update(MANIFEST, blocks, -0.3, block=2)
    assert whole == blocks
