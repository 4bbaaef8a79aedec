"""Checks of an update's values in pieces of any size: refusals, the named tensor, the norms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.errors import InvalidUpdate
from puf_common.tensors.manifest import UPDATE, Manifest, TensorSpec
from puf_server.core.norm_bounds import Norms
from puf_server.ingest.update_checks import UpdateCheck

MIXED = Manifest(
    (
        TensorSpec("w", "f32", (5, 3)),
        TensorSpec("half", "f16", (7,)),
        TensorSpec("mean", "f32", (4,), "buffer"),
        TensorSpec("wide", "f64", (3,)),
        TensorSpec("steps", "i64", (), "buffer"),
        TensorSpec("mask", "u8", (3,), "buffer"),
        TensorSpec("none", "f32", (0,)),
        TensorSpec("count", "i32", (2,), "buffer"),
    )
)


def update(**values: float) -> bytes:
    payload = bytearray(MIXED.nbytes(UPDATE))
    for name, view in MIXED.views(payload, UPDATE).items():
        view[...] = values.get(name, 0)
    return bytes(payload)


def look(payload: bytes, sizes: list[int], *, scale: float = 1.0, most: float = math.inf) -> Norms:
    check = UpdateCheck(MIXED, scale=scale, most=Norms(most, most))
    at = 0
    while at < len(payload):
        size = sizes[at % len(sizes)]
        check.feed(payload[at : at + size])
        at += size
    return check.norms


pieces = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@given(pieces, st.floats(-10, 10, width=32), st.sampled_from([1.0, -2.0, -1e6, 0.5]))
def test_norms_are_those_before_scaling_for_any_pieces(sizes: list[int], value: float, scale: float) -> None:
    payload = update(w=value * scale, half=value * scale, wide=value * scale, mean=3.0)
    found = look(payload, sizes, scale=scale)
    assert found.parameters == pytest.approx(abs(value) * math.sqrt(15 + 7 + 3), rel=1e-5, abs=1e-12)
    assert found.buffers == pytest.approx(6.0)


@given(pieces, st.sampled_from(["w", "half", "mean", "wide"]), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_the_tensor_that_is_not_finite_is_named(sizes: list[int], name: str, value: float) -> None:
    with pytest.raises(InvalidUpdate, match=f"tensor {name} has values that are not finite"):
        look(update(**{name: value}), sizes)


@given(pieces)
def test_too_large_names_the_tensor_with_the_largest_share_and_the_bound(sizes: list[int]) -> None:
    with pytest.raises(InvalidUpdate, match=r"the limit is 10.*tensor half") as caught:
        look(update(w=0.1, half=100.0), sizes, most=10.0)
    assert caught.value.facts == {"tensor": "half", "bound": "10"}
    with pytest.raises(InvalidUpdate, match=r"norm of buffers .*tensor mean"):
        look(update(mean=100.0), sizes, most=10.0)


def test_a_negated_update_of_ordinary_norm_passes_with_any_scale() -> None:
    honest = 2.0 / math.sqrt(25)
    scale = -20.0
    payload = update(w=honest * scale, half=honest * scale, wide=honest * scale)
    assert look(payload, [7], scale=scale, most=2.1).parameters == pytest.approx(2.0)
    with pytest.raises(InvalidUpdate):
        look(payload, [7], scale=1.0, most=2.1)


def test_the_largest_float_is_finite_and_too_large() -> None:
    assert look(update(w=3.4e38), [64]).parameters == pytest.approx(3.4e38 * math.sqrt(15))
    with pytest.raises(InvalidUpdate, match="tensor w"):
        look(update(w=3.4e38), [64], most=1e6)


@given(pieces, st.sampled_from([("steps", 2**63 - 1), ("steps", -(2**63)), ("count", 2**31 - 1)]))
def test_counters_keep_room_for_the_next_step(sizes: list[int], what: tuple[str, int]) -> None:
    name, value = what
    payload = bytearray(update())
    MIXED.views(payload, UPDATE)[name][...] = value
    with pytest.raises(InvalidUpdate, match=f"tensor {name} counts beyond"):
        look(bytes(payload), sizes)
    MIXED.views(payload, UPDATE)[name][...] = np.int32(2**29)
    MIXED.views(payload, UPDATE)["mask"][...] = 255
    look(bytes(payload), sizes)
