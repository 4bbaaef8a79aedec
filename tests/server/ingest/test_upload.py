"""One update from its header to its acknowledgement, without a network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.grpc.raw import nan_update, update_bytes
from tests.running import TINY, make_state, tiny_config
from tests.server.local import Local

from puf_common.errors import (
    CutShort,
    Forgotten,
    InvalidUpdate,
    Mismatch,
    PufError,
    StaleRound,
    TooMuch,
    TransferCorrupted,
    Unavailable,
)
from puf_common.tensors.chunks import ChunkView, chunk_views
from puf_common.tensors.encodings import compact, expand
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tensors_pb2 as ts
from puf_server import failpoints
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.state import State
from puf_server.ingest.upload import Upload
from puf_server.rpc.messages import update_header

NAMES = ("a", "b", "c")
PAYLOAD = update_bytes(0.5)


def opened(directory: Path, **changes: Any) -> Local:
    local = Local(make_state(directory, tiny_config(plan={"min_clients": 3, **changes.pop("plan", {})}, **changes)))
    local.join(*NAMES)
    return local


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = opened(tmp_path / "state")
    yield local
    failpoints.disarm()
    local.engine.close()


def begun(local: Local, payload: bytes = PAYLOAD, **fields: Any) -> Upload:
    return local.handlers.begin_upload("a", local.header("a", payload, **fields))


def reserved(local: Local) -> int:
    return sum(nbytes for client, nbytes in local.handlers.uploads.quota.arriving.values() if client == "a")


def test_an_update_is_published_then_booked_then_acknowledged(local: Local) -> None:
    upload = begun(local)
    assert reserved(local) == len(PAYLOAD)
    for chunk in chunk_views(PAYLOAD, 20):
        upload.write(chunk)
    assert upload.received == len(PAYLOAD)
    upload.publish()
    current = local.engine.state.round
    assert current is not None
    assert not current.received
    assert upload.book() is False
    current = local.engine.state.round
    assert current is not None
    update = current.received["a/main"]
    assert (update.nbytes, update.wire_nbytes, update.samples) == (len(PAYLOAD), len(PAYLOAD), 10)
    assert update.digest == hashlib.sha256(PAYLOAD).hexdigest()
    (name,) = local.spool()
    assert (local.engine.store.layout.spool / name).read_bytes() == PAYLOAD
    assert reserved(local) == 0


def test_the_same_update_again_is_a_duplicate_and_another_one_a_conflict(local: Local) -> None:
    header = local.header("a", PAYLOAD)
    local.submit("a", payload=PAYLOAD)
    upload = local.handlers.begin_upload("a", header)
    upload.write(ChunkView(0, PAYLOAD))
    assert local.handlers.finish_upload(upload).duplicate
    assert len(local.spool()) == 1
    other = update_bytes(0.25)
    header.digest = hashlib.sha256(other).digest()
    upload = local.handlers.begin_upload("a", header)
    upload.write(ChunkView(0, other))
    with pytest.raises(PufError, match="another update"):
        local.handlers.finish_upload(upload)
    assert len(local.spool()) == 1
    assert reserved(local) == 0


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"manifest_fingerprint": b"x" * 32}, Mismatch),
        ({"base_version": 7}, StaleRound),
        ({"samples": 11}, InvalidUpdate),
        ({"applied_scale": 2.0}, InvalidUpdate),
        ({"applied_scale": float("nan")}, InvalidUpdate),
        ({"samples_processed": 10**9}, PufError),
        ({"byte_length": 5}, InvalidUpdate),
        ({"digest": b"short"}, InvalidUpdate),
        ({"digest_kind": 99}, InvalidUpdate),
        ({"encoding": ts.ENCODING_F16}, InvalidUpdate),
        ({"encoding": 99}, InvalidUpdate),
        # Ordinary work unlearns no sample.
        ({"unlearned_samples": 10}, InvalidUpdate),
        ({"unlearned_digest": b"short"}, InvalidUpdate),
        ({"unlearned_digest": bytes(32)}, InvalidUpdate),
    ],
)
def test_a_header_that_is_not_acceptable_uses_neither_disk_nor_quota(
    local: Local, fields: dict[str, Any], error: type[PufError]
) -> None:
    with pytest.raises(error):
        begun(local, **fields)
    assert local.spool() == []
    assert reserved(local) == 0


def test_a_forgotten_client_is_refused_by_its_header(local: Local) -> None:
    header = local.header("a", PAYLOAD)

    def forget(state: State, now: float) -> tuple[State, None]:
        return state.with_member(replace(state.members["a"], status=MemberStatus.FORGOTTEN)), None

    local.engine.call(forget)
    with pytest.raises(Forgotten):
        local.handlers.begin_upload("a", header)


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        ([ChunkView(4, PAYLOAD[4:])], TransferCorrupted),
        ([ChunkView(0, PAYLOAD[:8]), ChunkView(0, PAYLOAD[:8])], TransferCorrupted),
        ([ChunkView(0, b"")], InvalidUpdate),
        ([ChunkView(0, PAYLOAD), ChunkView(len(PAYLOAD), b"more")], TooMuch),
        ([ChunkView(0, nan_update())], InvalidUpdate),
    ],
)
def test_after_a_refused_chunk_an_upload_cannot_be_continued(
    local: Local, chunks: list[ChunkView], error: type[PufError]
) -> None:
    upload = begun(local)
    *accepted, refused = chunks
    for chunk in accepted:
        upload.write(chunk)
    with pytest.raises(error):
        upload.write(refused)
    assert not upload.resumable
    local.handlers.uploads.keep(upload)
    assert local.spool() == []
    assert reserved(local) == 0


def test_an_update_that_ends_early_can_be_continued(local: Local) -> None:
    upload = begun(local)
    upload.write(ChunkView(0, PAYLOAD[:20]))
    with pytest.raises(CutShort, match="20 of 56"):
        upload.publish()
    assert upload.resumable
    upload.write(ChunkView(20, PAYLOAD[20:]))
    upload.publish()
    assert upload.book() is False


def test_bytes_that_do_not_match_the_digest_are_not_published(local: Local) -> None:
    upload = begun(local, digest=b"x" * 32)
    upload.write(ChunkView(0, PAYLOAD))
    with pytest.raises(TransferCorrupted, match="digest"):
        upload.publish()
    assert [name for name in local.spool() if not name.endswith(".part")] == []
    upload.discard()
    assert local.spool() == []


def test_discarding_twice_releases_the_quota_once(local: Local) -> None:
    first, second = begun(local), begun(local)
    first.discard()
    first.discard()
    assert reserved(local) == len(PAYLOAD)
    with pytest.raises(Unavailable, match="has ended"):
        first.write(ChunkView(0, PAYLOAD))
    second.discard()
    assert reserved(local) == 0


def test_an_update_that_the_round_no_longer_expects_is_deleted_when_it_is_booked(local: Local) -> None:
    upload = begun(local)
    upload.write(ChunkView(0, PAYLOAD))
    upload.publish()
    local.forget("a")
    with pytest.raises(StaleRound):
        upload.book()
    assert local.spool() == []
    assert reserved(local) == 0


class TestAfterTheCommit:
    """A client whose OK was lost sends its update again."""

    def commit(self, local: Local) -> None:
        local.submit("b", 0.5)
        local.submit("c", 0.5)
        local.engine.fold_ready()

    def committed(self, local: Local) -> fed.UpdateHeader:
        header = local.header("a", PAYLOAD)
        local.submit("a", payload=PAYLOAD)
        self.commit(local)
        assert local.engine.state.number == 1
        return header

    def test_a_counted_update_needs_no_upload(self, local: Local) -> None:
        header = self.committed(local)
        assert local.handlers.uploads.begin("a", update_header(header)) is None
        header.digest = hashlib.sha256(b"other").digest()
        with pytest.raises(StaleRound):
            local.handlers.uploads.begin("a", update_header(header))
        assert reserved(local) == 0

    def test_an_update_that_was_counted_while_it_arrived_again_leaves_no_file(self, local: Local) -> None:
        header = local.header("a", PAYLOAD)
        local.submit("a", payload=PAYLOAD)
        again = local.handlers.begin_upload("a", header)
        again.write(ChunkView(0, PAYLOAD))
        self.commit(local)
        again.publish()
        assert again.book() is True
        assert local.spool() == []
        assert local.engine.state.number == 1
        assert reserved(local) == 0


def test_a_full_disk_releases_the_quota(local: Local) -> None:
    upload = begun(local)
    failpoints.arm("spool.write=1*enospc")
    with pytest.raises(Unavailable, match="disk is full"):
        upload.write(ChunkView(0, PAYLOAD))
    upload.discard()
    assert local.spool() == []
    assert reserved(local) == 0


@pytest.mark.parametrize("encoding", ["f16", "bf16"])
@pytest.mark.parametrize("size", [3, 20, 1000])
def test_a_compact_update_is_expanded_as_it_arrives(tmp_path: Path, encoding: str, size: int) -> None:
    local = opened(tmp_path / "state", plan={"update_encoding": encoding})
    wire = compact(TINY, PAYLOAD, encoding)
    whole = bytes(expand(TINY, wire, encoding))
    kind = {"f16": ts.ENCODING_F16, "bf16": ts.ENCODING_BF16}[encoding]
    upload = begun(local, whole, encoding=kind)
    for chunk in chunk_views(wire, size):
        upload.write(chunk)
    assert upload.received == len(wire)
    upload.publish()
    upload.book()
    current = local.engine.state.round
    assert current is not None
    assert current.received["a/main"].wire_nbytes == len(wire)
    (name,) = local.spool()
    assert (local.engine.store.layout.spool / name).read_bytes() == whole
    assert np.allclose(np.frombuffer(whole[:36], "<f4"), 0.5)
    local.engine.close()
