"""The exact difference between two models: worked numbers, every type, pieces of any size, damaged bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puf_common.errors import TransferCorrupted
from puf_common.tensors.exact_difference import BLOCK, ExactDecoder, encoded, runs
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

EVERY_TYPE = Manifest(
    (
        TensorSpec("weight", "f32", (40,)),
        TensorSpec("bias", "f32", (3,)),
        TensorSpec("steps", "i64", (), "buffer"),
        TensorSpec("none", "f32", (0,), "buffer"),
        TensorSpec("half", "f16", (5,)),
        TensorSpec("double", "f64", (2,)),
        TensorSpec("flags", "bool", (3,), "buffer"),
        TensorSpec("bytes", "u8", (2,), "buffer"),
        TensorSpec("shorts", "i16", (3,), "buffer"),
    )
)


def reader(payload: bytes) -> Callable[[int, memoryview], None]:
    def read(offset: int, out: memoryview) -> None:
        out[:] = payload[offset : offset + len(out)]

    return read


def difference(manifest: Manifest, old: bytes, new: bytes) -> bytes:
    return b"".join(encoded(manifest, reader(old), reader(new)))


def applied(manifest: Manifest, old: bytes, wire: bytes, size: int = 1 << 20) -> bytes:
    decoder = ExactDecoder(manifest, old)
    parts = [bytes(part) for i in range(0, len(wire), size) for part in decoder.feed(wire[i : i + size])]
    return b"".join(parts)


@pytest.mark.parametrize(
    ("old", "new", "z"),
    [
        (1.0, 1.0, 0),
        # The next larger number, and the next smaller one.
        (1.0, np.nextafter(np.float32(1), np.float32(2)), 2),
        (1.0, np.nextafter(np.float32(1), np.float32(0)), 1),
        (-1.0, np.nextafter(np.float32(-1), np.float32(-2)), 1),
        # 0.0 and -0.0 are neighbours.
        (0.0, -0.0, 1),
        (-0.0, 0.0, 2),
    ],
)
def test_neighbouring_numbers_differ_by_one(old: float, new: float, z: int) -> None:
    one = Manifest((TensorSpec("w", "f32", (1,)),))
    wire = difference(one, np.float32(old).tobytes(), np.float32(new).tobytes())
    assert int.from_bytes(zstd.decompress(wire), "little") == z


def test_bytes_of_the_same_place_stand_together() -> None:
    two = Manifest((TensorSpec("w", "i32", (2,), "buffer"), TensorSpec("v", "i32", (1,), "buffer")))
    old, new = np.array([0, 0, 0], "<i4").tobytes(), np.array([1, 256, -1], "<i4").tobytes()
    # z is 2, 512 and 1. Tensors of one type form one run.
    assert zstd.decompress(difference(two, old, new)) == bytes([2, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0])


def test_runs_cover_every_byte_once_and_in_order() -> None:
    large = Manifest((TensorSpec("a", "f32", (BLOCK - 1,)), TensorSpec("b", "f32", (5,)), TensorSpec("c", "f64", (2,))))
    found = [(run.offset, run.nbytes) for run in runs(large)]
    assert found == [(0, 4 * BLOCK), (4 * BLOCK, 16), (4 * BLOCK + 16, 16)]
    assert sum(nbytes for _, nbytes in found) == large.nbytes(MODEL)


payloads = st.binary(min_size=EVERY_TYPE.nbytes(MODEL), max_size=EVERY_TYPE.nbytes(MODEL))


@given(old=payloads, new=payloads, size=st.integers(1, 300))
@settings(max_examples=60)
def test_every_model_arrives_with_its_bits(old: bytes, new: bytes, size: int) -> None:
    """Also NaNs with any payload, infinities and denormal numbers."""
    assert applied(EVERY_TYPE, old, difference(EVERY_TYPE, old, new), size) == new


def test_models_of_neighbouring_rounds_differ_by_fewer_bytes() -> None:
    chance = np.random.default_rng(1)
    manifest = Manifest((TensorSpec("w", "f32", (300_000,)),))
    old = chance.normal(0, 0.1, 300_000).astype("<f4")
    new = (old + chance.normal(0, 1e-3, 300_000)).astype("<f4")
    wire = difference(manifest, old.tobytes(), new.tobytes())
    assert applied(manifest, old.tobytes(), wire) == new.tobytes()
    assert len(wire) < 0.75 * new.nbytes


def test_damaged_bytes_are_refused_or_give_another_model() -> None:
    old, new = bytes(EVERY_TYPE.nbytes(MODEL)), bytes(range(256)) * 20
    new = new[: len(old)]
    wire = difference(EVERY_TYPE, old, new)
    for place in range(0, len(wire), 7):
        damaged = bytearray(wire)
        damaged[place] ^= 0x10
        try:
            assert len(applied(EVERY_TYPE, old, bytes(damaged))) <= len(new)
        except TransferCorrupted:
            continue


def test_a_difference_that_expands_to_more_than_the_model_stops_at_its_length() -> None:
    bomb = zstd.compress(bytes(1 << 26))
    old = bytes(EVERY_TYPE.nbytes(MODEL))
    assert applied(EVERY_TYPE, old, bomb) == old


def test_a_difference_that_asks_for_a_large_window_is_refused() -> None:
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    streamed = compressor.compress(bytes(1000)) + compressor.flush()
    with pytest.raises(TransferCorrupted, match="cannot be decompressed"):
        applied(EVERY_TYPE, bytes(EVERY_TYPE.nbytes(MODEL)), streamed)
