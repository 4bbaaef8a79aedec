"""Frames are those of protobuf, byte for byte."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from puf_common.tensors.chunk_frames import chunk_frame, chunk_of
from puf_common.tensors.chunks import ChunkView
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tensors_pb2 as ts

OFFSETS = st.integers(0, 2**63 - 1)


@given(OFFSETS, st.binary(max_size=300))
def test_a_frame_is_what_the_generated_classes_make(offset: int, data: bytes) -> None:
    chunk = ts.Chunk(offset=offset, data=data)
    frame = chunk_frame(offset, memoryview(data))
    assert frame == fed.FetchModelReply(chunk=chunk).SerializeToString()
    assert frame == fed.SubmitUpdateRequest(chunk=chunk).SerializeToString()


@given(OFFSETS, st.binary(min_size=1, max_size=300))
def test_a_frame_of_the_generated_classes_is_read_in_place(offset: int, data: bytes) -> None:
    frame = fed.SubmitUpdateRequest(chunk=ts.Chunk(offset=offset, data=data)).SerializeToString()
    piece = chunk_of(frame)
    assert piece == ChunkView(offset, data)
    assert isinstance(piece.data, memoryview)
    assert piece.data.obj is frame


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda rest: b"\x12" + rest))
def test_all_bytes_are_read_as_protobuf_reads_them(frame: bytes) -> None:
    piece = chunk_of(frame)
    if piece is not None:
        message = fed.SubmitUpdateRequest.FromString(frame)
        assert (message.chunk.offset, message.chunk.data) == piece


@pytest.mark.parametrize(
    "frame",
    [
        fed.SubmitUpdateRequest(header=fed.UpdateHeader(samples=3)).SerializeToString(),
        # An empty chunk; data before the offset; a field of a newer version; a chunk in two parts, which protobuf joins.
        fed.SubmitUpdateRequest(chunk=ts.Chunk(offset=7)).SerializeToString(),
        b"\x12\x05\x12\x01a\x08\x07",
        b"\x12\x07\x08\x07\x12\x01a\x18\x01",
        b"\x12\x02\x08\x07\x12\x03\x12\x01a",
    ],
)
def test_unusual_frames_are_left_to_the_generated_class(frame: bytes) -> None:
    assert chunk_of(frame) is None
    fed.SubmitUpdateRequest.FromString(frame)


@given(st.binary(min_size=1, max_size=50), st.data())
def test_a_truncated_frame_is_not_read(data: bytes, draw: st.DataObject) -> None:
    frame = chunk_frame(300, data)
    torn = frame[: draw.draw(st.integers(0, len(frame) - 1))]
    assert chunk_of(torn) is None
    if torn:
        with pytest.raises(DecodeError):
            fed.SubmitUpdateRequest.FromString(torn)
