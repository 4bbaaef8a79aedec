"""One download over several streams: what it asks for, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from puf_client.transport.base import HeldModel
from puf_client.transport.download import Download
from puf_common.errors import CutShort, TransferCorrupted
from puf_common.tensors.chunks import ChunkView
from puf_common.tensors.digests import digest
from puf_common.tensors.exact_difference import encoded
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tensors_pb2 as ts

MANIFEST = Manifest((TensorSpec("w", "f32", (3000,)),))
OLD = np.linspace(0, 1, 3000, dtype="<f4").tobytes()
NEW = (np.linspace(0, 1, 3000, dtype="<f4") * np.float32(1.0001)).tobytes()
HELD = HeldModel(6, b"six", OLD)


def wire() -> bytes:
    def reader(payload: bytes):  # type: ignore[no-untyped-def]
        return lambda offset, out: out.__setitem__(slice(None), payload[offset : offset + len(out)])

    return b"".join(encoded(MANIFEST, reader(OLD), reader(NEW)))


def whole(**fields: object) -> pb.ModelHeader:
    header = pb.ModelHeader(version=7, byte_length=len(NEW), digest=digest(NEW), blake3=digest(NEW, "blake3"))
    header.MergeFrom(pb.ModelHeader(**fields))  # type: ignore[arg-type]
    return header


def short(content: bytes, **fields: object) -> pb.ModelHeader:
    usual: dict[str, object] = {"base_version": 6, "kind": ts.DIFFERENCE_KIND_EXACT, "byte_length": len(content)}
    usual |= {"digest": digest(content, "blake3")}
    return whole(difference=pb.Difference(**(usual | fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize("difference", [False, True])
def test_a_second_stream_brings_the_rest(difference: bool) -> None:
    content = wire() if difference else NEW
    header = short(content) if difference else whole()
    download = Download(7, MANIFEST, HELD)
    assert download.request() == pb.FetchModelRequest(version=7, held_version=6, held_digest=b"six")
    download.begin(header)
    download.add(ChunkView(0, content[:1000]))
    request = download.request()
    assert (request.resume_at, request.resume_digest) == (
        1000,
        digest(content, "blake3") if difference else digest(NEW),
    )
    header.begins_at = 1000
    download.begin(header)
    download.add(ChunkView(1000, content[1000:]))
    assert download.finish()[1] == NEW


def test_a_stream_that_begins_anew_replaces_what_arrived() -> None:
    content = wire()
    download = Download(7, MANIFEST, HELD)
    download.begin(short(content))
    download.add(ChunkView(0, content[:1000]))
    # The server no longer has the difference.
    download.begin(whole())
    download.add(ChunkView(0, NEW))
    assert download.finish()[1] == NEW


def test_an_incomplete_stream_is_no_model() -> None:
    download = Download(7, MANIFEST, None)
    download.begin(whole())
    download.add(ChunkView(0, NEW[:-4]))
    with pytest.raises(CutShort):
        download.finish()


def test_what_a_server_must_not_send() -> None:
    content = wire()
    bad = {
        "continues another stream": (HELD, whole(begins_at=4)),
        "model that was not named": (None, short(content)),
        "not named, for 7": (HELD, short(content, base_version=5)),
        "longer than the model": (HELD, short(content, byte_length=len(NEW))),
        "kind 7": (HELD, short(content, kind=7)),
        "states 8 bytes": (None, pb.ModelHeader(version=7, byte_length=8)),
    }
    for message, (held, header) in bad.items():
        with pytest.raises(TransferCorrupted, match=message):
            Download(7, MANIFEST, held).begin(header)
    download = Download(7, MANIFEST, HELD)
    download.begin(short(content, byte_length=len(content) - 1))
    with pytest.raises(TransferCorrupted, match="longer than its header states"):
        download.add(ChunkView(0, content))
    with pytest.raises(TransferCorrupted, match="is empty"):
        download.add(ChunkView(0, b""))
    # A difference to another model gives another digest.
    download = Download(7, MANIFEST, HELD._replace(payload=bytes(MANIFEST.nbytes(MODEL))))
    download.begin(short(content))
    download.add(ChunkView(0, content))
    with pytest.raises(TransferCorrupted, match="digest"):
        download.finish()


def test_a_stream_cannot_continue_with_another_header() -> None:
    content = wire()
    download = Download(7, MANIFEST, HELD)
    download.begin(short(content))
    download.add(ChunkView(0, content[:1000]))
    changed = short(content, byte_length=len(content) + 1)
    changed.begins_at = 1000
    with pytest.raises(TransferCorrupted, match="another stream"):
        download.begin(changed)
