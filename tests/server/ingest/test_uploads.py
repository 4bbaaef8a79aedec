"""Uploads whose stream broke: which are kept, for how long, and what deletes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.grpc.raw import update_bytes
from tests.running import make_state, tiny_config
from tests.server.local import Local

from puf_common.errors import StaleRound, TooMuch, TransferCorrupted
from puf_common.tensors.chunks import ChunkView
from puf_common.v1 import federation_pb2 as fed
from puf_server.ingest.upload import Upload
from puf_server.rpc import messages

PAYLOAD = update_bytes(0.5)
HALF = 20


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(make_state(tmp_path / "state", tiny_config(plan={"min_clients": 20})))
    local.join(*(f"c{i:02d}" for i in range(20)))
    yield local
    local.engine.close()


def broken(local: Local, name: str = "c00") -> tuple[fed.UpdateHeader, Upload]:
    """An upload of which the first bytes are kept."""
    header = local.header(name, PAYLOAD)
    upload = local.handlers.begin_upload(name, header)
    upload.write(ChunkView(0, PAYLOAD[:HALF]))
    local.handlers.uploads.keep(upload)
    return header, upload


def offset(local: Local, header: fed.UpdateHeader, name: str = "c00") -> int:
    return local.handlers.uploads.offset(name, messages.update_header(header))


def test_the_same_upload_continues_and_is_booked(local: Local) -> None:
    header, upload = broken(local)
    assert offset(local, header) == HALF
    header.resume_at = HALF
    again = local.handlers.begin_upload("c00", header)
    assert again is upload
    assert offset(local, header) == 0
    again.write(ChunkView(HALF, PAYLOAD[HALF:]))
    assert not local.handlers.finish_upload(again).duplicate
    assert not local.handlers.uploads.quota.arriving


def test_an_update_from_another_model_of_the_same_version_is_refused(local: Local) -> None:
    """After a restored backup, a version can be another model than the one that a client trained from."""
    header = local.header("c00", PAYLOAD)
    header.base_digest = bytes.fromhex(local.engine.state.models[0].digest)
    local.handlers.begin_upload("c00", header).discard()
    header.base_digest = bytes(32)
    with pytest.raises(StaleRound, match="another model 0"):
        local.handlers.begin_upload("c00", header)


def test_an_upload_without_a_byte_is_not_kept(local: Local) -> None:
    header = local.header("c00", PAYLOAD)
    local.handlers.uploads.keep(local.handlers.begin_upload("c00", header))
    assert offset(local, header) == 0
    assert local.spool() == []


def test_a_wrong_offset_deletes_it(local: Local) -> None:
    header, _ = broken(local)
    header.resume_at = HALF + 1
    with pytest.raises(TransferCorrupted, match="from the beginning"):
        local.handlers.begin_upload("c00", header)
    assert local.spool() == []
    header.resume_at = HALF
    with pytest.raises(TransferCorrupted, match="from the beginning"):
        local.handlers.begin_upload("c00", header)


def test_a_client_that_begins_anew_gives_its_kept_upload_up_before_it_needs_quota(tmp_path: Path) -> None:
    config = tiny_config(plan={"min_clients": 2}, limits={"client_bytes": len(PAYLOAD)})
    local = Local(make_state(tmp_path / "state", config))
    local.join("c00", "c01")
    header, _ = broken(local)
    upload = local.handlers.begin_upload("c00", header)
    with pytest.raises(TooMuch, match="bytes of updates here"):
        local.handlers.begin_upload("c00", header)
    upload.discard()
    assert local.spool() == []
    local.engine.close()


def test_another_digest_or_client_finds_nothing(local: Local) -> None:
    header, _ = broken(local)
    assert offset(local, header, "c01") == 0
    header.digest = b"x" * 32
    assert offset(local, header) == 0


def test_a_request_to_be_forgotten_deletes_it(local: Local) -> None:
    header, _ = broken(local)
    local.forget("c00")
    assert local.spool() == []
    assert offset(local, header) == 0
    assert not local.handlers.uploads.quota.arriving


def test_it_is_deleted_after_ten_minutes(local: Local) -> None:
    header, _ = broken(local)
    local.clock.now += 599
    assert offset(local, header) == HALF
    local.clock.now += 2
    local.handlers.uploads.drop_unwanted()
    assert local.spool() == []


def test_at_most_sixteen_are_kept_and_the_oldest_goes_first(local: Local) -> None:
    headers = [broken(local, f"c{i:02d}")[0] for i in range(18)]
    assert [offset(local, header, f"c{i:02d}") for i, header in enumerate(headers)] == [0, 0] + [HALF] * 16
    assert len(local.spool()) == 16


def test_a_later_broken_upload_of_a_client_replaces_the_earlier_one(local: Local) -> None:
    first = local.header("c00", PAYLOAD)
    uploads = [local.handlers.begin_upload("c00", first), local.handlers.begin_upload("c00", first)]
    for upload in uploads:
        upload.write(ChunkView(0, PAYLOAD[:HALF]))
    for upload in uploads:
        local.handlers.uploads.keep(upload)
    assert len(local.spool()) == 1
