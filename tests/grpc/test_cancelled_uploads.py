"""A call that is cancelled while the server begins its upload leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.grpc.raw import Raw, frames, update_bytes
from tests.running import make_state, running, tiny_config

from puf_common.v1 import federation_pb2 as fed
from puf_lab.federations.processes import wait_until
from puf_server.runtime.server import Server


class BlockingClock:
    """Time that stops in the threads that begin uploads for as long as it is `closed`."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._may_go = threading.Event()
        self._may_go.set()

    def close(self) -> None:
        self.reached.clear()
        self._may_go.clear()

    def open(self) -> None:
        self._may_go.set()

    def __call__(self) -> float:
        if threading.current_thread().name.startswith("puf-files"):
            if not self._may_go.is_set():
                self.reached.set()
            assert self._may_go.wait(30)
        return time.time()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(make_state(tmp_path / "state", tiny_config(plan={"rounds": 1}))) as server:
        yield server


@pytest.fixture
def clock(server: Server) -> Iterator[BlockingClock]:
    clock = BlockingClock()
    server.engine.clock = clock
    yield clock
    clock.open()


@pytest.fixture
def anna(server: Server) -> Iterator[Raw]:
    with Raw(server.port, "anna") as anna, Raw(server.port, "bert") as bert:
        anna.join()
        bert.join()
        yield anna


def spool(server: Server) -> list[Path]:
    return list((server.engine.store.directory / "spool").iterdir())


def cancel_while_beginning(clock: BlockingClock, client: Raw, header: fed.UpdateHeader) -> None:
    """Sends a header and cancels the call after the server has begun to look at it."""
    clock.close()
    over = threading.Event()

    def only_the_header() -> Iterator[fed.SubmitUpdateRequest]:
        yield fed.SubmitUpdateRequest(header=header)
        over.wait(30)

    call = client.stub.SubmitUpdate.future(only_the_header(), **client.options)
    assert clock.reached.wait(20)
    call.cancel()  # type: ignore[no-untyped-call]
    # An answer on the same connection: the server has seen the cancellation before it.
    client.stub.Describe(fed.DescribeRequest(), **client.options)
    clock.open()
    over.set()


def test_an_upload_that_was_not_begun_yet_is_deleted_and_its_quota_released(
    server: Server, clock: BlockingClock, anna: Raw
) -> None:
    work, payload = anna.wait().train, update_bytes()
    quota = server.handlers.uploads.quota
    # More often than the quota has room for.
    for _ in range(6):
        cancel_while_beginning(clock, anna, anna.header(work, payload))
        wait_until(lambda: not quota.arriving and not spool(server), 20)
    anna.submit(work, payload)
    assert len(spool(server)) == 1


def test_a_resumed_upload_is_kept_for_the_next_stream_and_deleted_on_a_request_to_be_forgotten(
    server: Server, clock: BlockingClock, anna: Raw
) -> None:
    work, payload = anna.wait().train, update_bytes()
    header = anna.header(work, payload)
    half = list(frames(header, payload, len(payload) // 2))[:2]
    with pytest.raises(Exception, match="the stream ended after"):
        anna.stub.SubmitUpdate(iter(half), **anna.options)
    kept = anna.stub.FindUpload(fed.FindUploadRequest(header=header), **anna.options).offset
    assert kept == len(payload) // 2
    for _ in range(4):
        cancel_while_beginning(clock, anna, anna.header(work, payload, resume_at=kept))
        wait_until(
            lambda: anna.stub.FindUpload(fed.FindUploadRequest(header=header), **anna.options).offset == kept, 20
        )
    assert len(spool(server)) == 1
    anna.file()
    assert spool(server) == []
    assert not server.handlers.uploads.quota.arriving
