"""Files of several processes that serve one federation: broken uploads, quotas, and files of a process that died."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from tests.grpc.raw import update_bytes
from tests.server.engine.processes import NAMES, exchange
from tests.server.local import Clock, Local

from puf_common.clock import steady_time
from puf_common.errors import TooMuch, Unavailable
from puf_common.v1 import tensors_pb2 as ts
from puf_server.engine import receipts
from puf_server.rpc import messages
from puf_server.storage import postgres_exchange


def test_a_silent_process_loses_its_connections_and_its_unfinished_files(
    start: Callable[[], Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = start(), start()
    one.join(*NAMES)
    two.engine.catch_up()
    upload = one.begin("a", 0.1)
    exchange(one)
    exchange(two)
    assert len(two.spool()) == 1
    clock = Clock()
    clock.now = steady_time()
    monkeypatch.setattr(postgres_exchange, "steady_time", clock)
    two.engine.delete_orphans()
    assert len(two.spool()) == 1
    for _ in range(12):
        clock.now += 1.0
        exchange(two)
    assert two.spool() == []
    # It wakes: the update cannot be published, and its client sends it again.
    with pytest.raises(Exception, match="not stored"):
        one.handlers.finish_upload(upload)
    upload.discard()
    one.submit("a", 0.1)
    two.engine.catch_up()
    assert two.engine.state.round is not None
    assert set(two.engine.state.round.received) == {"a/main"}


def test_an_upload_that_broke_at_one_process_continues_at_another(start: Callable[[], Local]) -> None:
    one, two = start(), start()
    one.join(*NAMES)
    two.engine.catch_up()
    payload = update_bytes(0.25)
    header = one.header("a", payload)
    broken = one.handlers.begin_upload("a", header)
    broken.write(ts.Chunk(offset=0, data=payload[:24]))
    asked = messages.update_header(header)
    # The first process was killed, or has not noticed yet that the stream is broken.
    assert two.handlers.uploads.offset("a", asked) == 24
    header.resume_at = 24
    upload = two.handlers.begin_upload("a", header)
    assert upload.received == 24
    broken.write(ts.Chunk(offset=24, data=bytes(8)))
    upload.write(ts.Chunk(offset=24, data=payload[24:]))
    two.handlers.finish_upload(upload)
    one.engine.catch_up()
    one.handlers.uploads.keep(broken)
    assert one.spool() == [f"1.1.a.main.{hashlib.sha256(payload).hexdigest()[:32]}"]
    assert (two.engine.store.directory / "spool" / one.spool()[0]).read_bytes() == payload


def test_a_client_has_one_quota_at_all_processes(start: Callable[[], Local]) -> None:
    one, two = start(), start()
    one.join(*NAMES)
    two.engine.catch_up()
    uploads = [one.begin("a", 0.1), one.begin("a", 0.2), two.begin("a", 0.3), two.begin("a", 0.4)]
    for process in (one, two):
        with pytest.raises(TooMuch, match="a has"):
            process.begin("a", 0.5)
    one.begin("b", 0.5).discard()
    for upload in uploads[:2]:
        upload.discard()
    two.begin("a", 0.5).discard()


def test_no_receipt_is_issued_while_a_dead_process_has_a_file_of_the_client(
    start: Callable[[], Local],
) -> None:
    one, two = start(), start()
    one.join(*NAMES)
    exchange(one)
    exchange(two)
    # The process dies during this upload and with an older model that it did not finish.
    upload, model = one.begin("a", 0.1), one.engine.store.models.new(1)
    for name in NAMES:
        two.submit(name, 0.1)
    two.engine.fold_ready()
    ticket = two.forget("a")
    while two.engine.state.tickets[ticket].state != "completed":
        for name in NAMES:
            session = two.engine.state.members[name].session
            if session and two.handlers.work(name, session) is not None:
                two.submit(name, 0.1)
        two.engine.fold_ready()
    with pytest.raises(Unavailable, match="another server"):
        receipts.issue(two.engine, ticket)
    upload.discard()
    with pytest.raises(Unavailable, match="another server"):
        receipts.issue(two.engine, ticket)
    model.discard()
    # The next model of a process that lives contains nothing of the client.
    model = one.engine.store.models.new(two.engine.state.newest + 1)
    assert receipts.issue(two.engine, ticket)
    model.discard()
