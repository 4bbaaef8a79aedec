"""Frames of chunks without the copies of the generated classes, byte for byte the same.

`FetchModelReply` and `SubmitUpdateRequest` have the same layout (header = 1, chunk = 2), and nearly every message of a
federation is a chunk of some mebibytes. The generated classes copy its data four times, each time under the interpreter
lock. This module copies it once when it writes, and never when it reads. `chunk_of` accepts only the usual layout of
protobuf encoders and leaves any other to the generated class: protobuf defines the contract, not this module.
"""

from __future__ import annotations

from puf_common.tensors.chunks import ChunkView, Payload

# Tags: field 2 of the frame and of the chunk, length-delimited; field 1 of the chunk, a varint.
_BYTES_2 = 0x12
_VARINT_1 = 0x08


def chunk_frame(offset: int, data: Payload) -> bytes:
    """A frame with one chunk, as `SerializeToString` of the generated class makes it."""
    inner = b"" if offset == 0 else bytes((_VARINT_1,)) + _varint(offset)
    if data:
        inner += bytes((_BYTES_2,)) + _varint(len(data))
    return b"".join((bytes((_BYTES_2,)), _varint(len(inner) + len(data)), inner, data))


def chunk_of(frame: bytes) -> ChunkView | None:
    """The chunk in a frame, without a copy. None if the frame has no chunk, or the generated class must read it."""
    try:
        if frame[0] != _BYTES_2:
            return None
        length, at = _read_varint(frame, 1)
        if at + length != len(frame):
            return None
        offset = 0
        if frame[at] == _VARINT_1:
            offset, at = _read_varint(frame, at + 1)
        if frame[at] != _BYTES_2:
            return None
        length, at = _read_varint(frame, at + 1)
    except (IndexError, ValueError):
        return None
    return ChunkView(offset, memoryview(frame)[at:]) if at + length == len(frame) else None


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The value and the position after it. A length or an offset has at most 63 bits."""
    value = 0
    for shift in range(0, 63, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a varint of more than 63 bits")
