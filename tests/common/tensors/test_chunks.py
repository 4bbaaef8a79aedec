"""A stream of chunks gives the whole payload or an error, after any damage."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from puf_common.errors import InvalidUpdate, TooMuch, TransferCorrupted
from puf_common.tensors.chunks import Assembler, chunks
from puf_common.tensors.digests import digest
from puf_common.v1 import tensors_pb2 as pb

Damage = Callable[[list[pb.Chunk], int], list[pb.Chunk]]
sizes = st.integers(1, 70)
payloads = st.binary(max_size=600)


def assemble(stream: Iterable[pb.Chunk], total: int, stated: bytes) -> memoryview:
    assembler = Assembler(total, stated)
    for chunk in stream:
        assembler.add(chunk)
    return assembler.finish()


@given(payloads, sizes)
def test_any_chunking_round_trips(payload: bytes, size: int) -> None:
    assert assemble(chunks(payload, size), len(payload), digest(payload)) == payload


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=12))
def test_chunks_of_uneven_length_round_trip(pieces: list[bytes]) -> None:
    payload = b"".join(pieces)
    stream, offset = [], 0
    for piece in pieces:
        stream.append(pb.Chunk(offset=offset, data=piece))
        offset += len(piece)
    assert assemble(stream, len(payload), digest(payload)) == payload


def test_chunks_of_a_typed_view_count_bytes() -> None:
    payload = memoryview(bytearray(range(16))).cast("I")
    assert [c.offset for c in chunks(payload, 6)] == [0, 6, 12]


def drop(stream: list[pb.Chunk], at: int) -> list[pb.Chunk]:
    return stream[:at] + stream[at + 1 :]


def repeat(stream: list[pb.Chunk], at: int) -> list[pb.Chunk]:
    return [*stream[: at + 1], *stream[at:]]


def swap(stream: list[pb.Chunk], at: int) -> list[pb.Chunk]:
    assume(at + 1 < len(stream))
    return [*stream[:at], stream[at + 1], stream[at], *stream[at + 2 :]]


def truncate(stream: list[pb.Chunk], at: int) -> list[pb.Chunk]:
    return [*stream[:at], pb.Chunk(offset=stream[at].offset, data=stream[at].data[:-1]), *stream[at + 1 :]]


def stop(stream: list[pb.Chunk], at: int) -> list[pb.Chunk]:
    return stream[:at]


def flip(stream: list[pb.Chunk], at: int) -> list[pb.Chunk]:
    data = bytearray(stream[at].data)
    data[-1] ^= 1
    return [*stream[:at], pb.Chunk(offset=stream[at].offset, data=bytes(data)), *stream[at + 1 :]]


def exchange(stream: list[pb.Chunk], at: int) -> list[pb.Chunk]:
    """Offsets in order, data swapped: only the digest detects it."""
    other = (at + 1) % len(stream)
    assume(stream[at].data != stream[other].data and len(stream[at].data) == len(stream[other].data))
    swapped = list(stream)
    swapped[at] = pb.Chunk(offset=stream[at].offset, data=stream[other].data)
    swapped[other] = pb.Chunk(offset=stream[other].offset, data=stream[at].data)
    return swapped


def extend(stream: list[pb.Chunk], at: int) -> list[pb.Chunk]:
    end = stream[-1].offset + len(stream[-1].data)
    return [*stream, pb.Chunk(offset=end, data=b"x")]


def hollow(stream: list[pb.Chunk], at: int) -> list[pb.Chunk]:
    return [*stream[:at], pb.Chunk(offset=stream[at].offset), *stream[at:]]


@pytest.mark.parametrize("damage", [drop, repeat, swap, truncate, stop, flip, exchange, extend, hollow])
@given(payload=st.binary(min_size=1, max_size=300), size=sizes, data=st.data())
def test_every_damage_is_detected(damage: Damage, payload: bytes, size: int, data: st.DataObject) -> None:
    stream = list(chunks(payload, size))
    damaged = damage(stream, data.draw(st.integers(0, len(stream) - 1)))
    with pytest.raises((TransferCorrupted, InvalidUpdate, TooMuch)):
        assemble(damaged, len(payload), digest(payload))


def test_a_wrong_digest_names_both() -> None:
    with pytest.raises(TransferCorrupted) as caught:
        assemble(chunks(b"abc"), 3, digest(b"abd"))
    assert caught.value.facts == {"stated": digest(b"abd").hex(), "computed": digest(b"abc").hex()}


def test_an_invalid_digest_is_refused_before_memory_is_allocated() -> None:
    with pytest.raises(InvalidUpdate, match="32"):
        Assembler(1 << 60, b"")


def test_a_chunk_size_of_0_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        list(chunks(b"abc", 0))
