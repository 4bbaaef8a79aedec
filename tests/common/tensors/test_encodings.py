"""Compact updates: their rounding errors, and the inputs that are refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.errors import InvalidUpdate
from puf_common.tensors.encodings import Expander, compact, compact_nbytes, expand
from puf_common.tensors.manifest import UPDATE, Manifest, TensorSpec

MANIFEST = Manifest(
    (
        TensorSpec("weight", "f32", (2, 3)),
        TensorSpec("mean", "f32", (2,), "buffer"),
        TensorSpec("bias", "f32", (3,)),
        TensorSpec("steps", "i64", (), "buffer"),
        TensorSpec("half", "f16", (2,)),
        TensorSpec("double", "f64", (1,)),
    )
)
PRECISION = {"f16": 2.0**-11, "bf16": 2.0**-8}
VALUES = st.floats(-(2.0**100), 2.0**100, width=32)


def payload(weight: list[float], bias: list[float]) -> bytes:
    return (
        np.array(weight, "<f4").tobytes()
        + np.array([0.1, 0.2], "<f4").tobytes()
        + np.array(bias, "<f4").tobytes()
        + np.array(7, "<i8").tobytes()
        + np.array([0.3, 0.4], "<f4").tobytes()
        + np.array([0.5], "<f8").tobytes()
    )


@pytest.mark.parametrize("encoding", ["f16", "bf16"])
def test_example_values(encoding: str) -> None:
    """The largest value 3 becomes 3 * 2^13. 1 + 2^-12 is beyond both precisions and becomes 1."""
    update = payload([3.0, -1.0, 0.5, 0.0, 1 + 2.0**-12, 2.0], [0.0, 0.0, 0.0])
    wire = compact(MANIFEST, update, encoding)
    assert len(wire) == compact_nbytes(MANIFEST, encoding) == 3 * 4 + 6 * 2 + 2 * 4 + 3 * 2 + 8 + 2 * 2 + 8
    assert struct.unpack_from("<3f", wire) == (2.0**-13, 1.0, 2.0**-16)
    back = MANIFEST.views(expand(MANIFEST, wire, encoding), UPDATE)
    assert back["weight"].flatten().tolist() == [3.0, -1.0, 0.5, 0.0, 1.0, 2.0]
    assert back["steps"] == 7
    assert back["mean"].tolist() == np.array([0.1, 0.2], "<f4").tolist()
    assert back["double"].tolist() == [0.5]


@pytest.mark.parametrize("encoding", ["f16", "bf16"])
@given(weight=st.lists(VALUES, min_size=6, max_size=6), size=st.integers(1, 60))
def test_the_rounding_error_is_bounded(encoding: str, weight: list[float], size: int) -> None:
    update = payload(weight, [1e-30, -2e-30, 0.0])
    wire = compact(MANIFEST, update, encoding)
    whole = expand(MANIFEST, wire, encoding)
    assert len(whole) == MANIFEST.nbytes(UPDATE)
    before = np.array(weight, "<f4").astype("f8")
    after = MANIFEST.views(whole, UPDATE)["weight"].flatten().astype("f8")
    # The error of very small values is a share of the tensor's largest value.
    allowed = PRECISION[encoding] * np.abs(before) + 2.0**-38 * np.abs(before).max() + 2.0**-149
    assert (np.abs(after - before) <= allowed).all()
    bias = MANIFEST.views(whole, UPDATE)["bias"]
    assert bias == pytest.approx([1e-30, -2e-30, 0.0], rel=2 * PRECISION[encoding])
    expander = Expander(MANIFEST, encoding)
    assert b"".join(expander.feed(wire[i : i + size]) for i in range(0, len(wire), size)) == whole


def test_compacting_an_expanded_update_changes_nothing() -> None:
    wire = compact(MANIFEST, payload([0.3, -0.1, 7.7, 1e-9, 5.5, -3.1], [0.1, 0.2, 0.3]), "f16")
    assert compact(MANIFEST, expand(MANIFEST, wire, "f16"), "f16") == wire


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf"), 2.0**120])
def test_an_invalid_factor_is_refused_with_the_tensors_name(factor: float) -> None:
    wire = bytearray(compact(MANIFEST, payload([1.0] * 6, [1.0] * 3), "f16"))
    wire[4:8] = struct.pack("<f", factor)
    with pytest.raises(InvalidUpdate, match="tensor bias"):
        expand(MANIFEST, wire, "f16")


@pytest.mark.parametrize(("encoding", "bits"), [("f16", 0x7C00), ("f16", 0x7E00), ("bf16", 0x7F80), ("bf16", 0x7F00)])
def test_numbers_that_are_not_finite_or_too_large_are_refused(encoding: str, bits: int) -> None:
    wire = bytearray(compact(MANIFEST, payload([1.0] * 6, [1.0] * 3), encoding))
    wire[12:14] = struct.pack("<H", bits)
    with pytest.raises(InvalidUpdate, match="tensor weight"):
        expand(MANIFEST, wire, encoding)


def test_more_bytes_than_the_manifest_has_are_refused() -> None:
    wire = compact(MANIFEST, payload([1.0] * 6, [1.0] * 3), "f16")
    with pytest.raises(InvalidUpdate, match="longer"):
        expand(MANIFEST, wire + b"x", "f16")
