"""8-bit numbers with a scale per block: error bound, mean error, the same bytes for the same seed."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.errors import InvalidUpdate
from puf_common.tensors.encodings import Expander, compact, compact_nbytes, expand
from puf_common.tensors.manifest import UPDATE, Manifest, TensorSpec
from puf_common.tensors.quantised import BLOCK, Quantiser, decode, quantised_nbytes

MANIFEST = Manifest(
    (
        TensorSpec("weight", "f32", (600,)),
        TensorSpec("mean", "f32", (2,), "buffer"),
        TensorSpec("bias", "f32", (3,)),
        TensorSpec("steps", "i64", (), "buffer"),
        TensorSpec("double", "f64", (1,)),
    )
)


def update(seed: int, size: float = 1.0) -> bytes:
    chance = np.random.default_rng(seed)
    whole = bytearray(MANIFEST.nbytes(UPDATE))
    for tensor in MANIFEST.views(whole, UPDATE).values():
        tensor[...] = (chance.normal(0, size, tensor.shape)).astype(tensor.dtype)
    return bytes(whole)


@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=700),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_value_is_off_by_less_than_one_scale_of_its_block(values: list[float], seed: int) -> None:
    before = np.array(values, "<f4")
    wire = Quantiser(seed).encode(before)
    assert len(wire) == quantised_nbytes(len(values))
    assert wire == Quantiser(seed).encode(before)
    after = decode(wire)
    for begin in range(0, len(values), BLOCK):
        block = before[begin : begin + BLOCK].astype("f8")
        step = np.abs(block).max() / 127
        assert (np.abs(after[begin : begin + BLOCK] - block) <= step * (1 + 1e-5) + 2.0**-112).all()


def test_the_mean_error_is_zero_over_seeds() -> None:
    before = np.linspace(-1, 1, 3 * BLOCK, dtype="<f4")
    runs = 400
    mean = np.mean([decode(Quantiser(seed).encode(before)) for seed in range(runs)], axis=0, dtype="f8")
    # The error of one rounding is below one step, its deviation at most half of one.
    step = 1 / 127
    assert np.abs(mean - before).max() < 5 * 0.5 * step / np.sqrt(runs)
    assert abs((mean - before).mean()) < 5 * 0.5 * step / np.sqrt(runs * len(before))


@given(seed=st.integers(0, 100), size=st.integers(1, 900))
def test_an_update_expands_from_pieces_of_any_size(seed: int, size: int) -> None:
    whole = update(seed)
    wire = compact(MANIFEST, whole, "i8", seed)
    assert len(wire) == compact_nbytes(MANIFEST, "i8")
    expander = Expander(MANIFEST, "i8")
    expanded = b"".join(expander.feed(wire[i : i + size]) for i in range(0, len(wire), size))
    assert expanded == expand(MANIFEST, wire, "i8")
    before, after = MANIFEST.views(whole, UPDATE), MANIFEST.views(expanded, UPDATE)
    assert all(np.array_equal(before[name], after[name]) for name in ("mean", "steps", "double"))
    weights = [views["weight"].astype("f8") for views in (before, after)]
    assert np.abs(weights[0] - weights[1]).max() < np.abs(weights[0]).max() / 126


def test_an_update_has_a_quarter_of_the_bytes() -> None:
    large = Manifest((TensorSpec("weight", "f32", (512, 512)),))
    assert compact_nbytes(large, "i8") <= 0.26 * large.nbytes(UPDATE)


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf"), 2.0**121])
def test_an_invalid_scale_is_refused(scale: float) -> None:
    wire = bytearray(compact(MANIFEST, update(1), "i8"))
    wire[:4] = struct.pack("<f", scale)
    with pytest.raises(InvalidUpdate, match="scale"):
        expand(MANIFEST, wire, "i8")
