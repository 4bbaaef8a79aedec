"""A model from another one and a step in 8-bit numbers."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.errors import TransferCorrupted
from puf_common.tensors.differences import decoder
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_common.tensors.quantised import nearest
from puf_common.v1 import tensors_pb2 as pb

MANIFEST = Manifest(
    (
        TensorSpec("weight", "f32", (2,)),
        TensorSpec("mean", "f32", (1,), "buffer"),
        TensorSpec("half", "f16", (1,)),
        TensorSpec("steps", "i64", (), "buffer"),
    )
)


def model(weight: list[float], mean: float, half: float, steps: int) -> bytes:
    return np.array([*weight, mean], "<f4").tobytes() + struct.pack("<eq", half, steps)


STEP = struct.pack("<f2bfeq", 0.25, 4, -2, 9.0, 1.5, 7)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_step_adds_to_parameters_and_replaces_all_else(size: int) -> None:
    made = decoder(pb.DIFFERENCE_KIND_STEP_I8, MANIFEST, model([10.0, 20.0], 1.0, 1.0, 6))
    parts = [bytes(part) for i in range(0, len(STEP), size) for part in made.feed(STEP[i : i + size])]
    assert b"".join(parts) == model([11.0, 19.5], 9.0, 1.5, 7)


@pytest.mark.parametrize("scale", [-1.0, float("nan"), 2.0**121])
def test_a_step_with_an_invalid_scale_is_refused(scale: float) -> None:
    made = decoder(pb.DIFFERENCE_KIND_STEP_I8, MANIFEST, bytes(MANIFEST.nbytes(MODEL)))
    with pytest.raises(TransferCorrupted, match="scale"):
        list(made.feed(struct.pack("<f", scale) + STEP[4:]))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(TransferCorrupted, match="kind 9"):
        decoder(9, MANIFEST, b"")


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=600))
def test_the_nearest_number_is_off_by_half_a_scale(values: list[float]) -> None:
    manifest = Manifest((TensorSpec("w", "f32", (len(values),)),))
    step = np.array(values, "<f4")
    made = decoder(pb.DIFFERENCE_KIND_STEP_I8, manifest, bytes(step.nbytes))
    after = np.frombuffer(b"".join(bytes(part) for part in made.feed(nearest(step))), "<f4")
    for begin in range(0, len(values), 256):
        block = step[begin : begin + 256].astype("f8")
        scale = np.abs(block).max() / 126.999
        assert (np.abs(after[begin : begin + 256] - block) <= scale * 0.50001 + 2.0**-112).all()
