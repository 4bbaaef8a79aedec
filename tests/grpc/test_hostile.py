"""A hostile client over real gRPC gets a status. The other clients and the state are not affected."""

from __future__ import annotations

import logging
import math
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.grpc.raw import Raw, frames, status, update_bytes
from tests.running import make_state, metadata, running, tiny_config

from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tensors_pb2 as ts
from puf_common.v1 import tickets_pb2 as tk
from puf_server.cli.operator_client import OperatorClient
from puf_server.runtime.server import Server
from puf_server.storage.state_store import Store

METHODS = list(fed.DESCRIPTOR.services_by_name["Federation"].methods)
MOST = 2**64 - 1


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "state", tiny_config(plan={"min_clients": 3, "evaluate_every": 1}))


@pytest.fixture
def server(state: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Server]:
    """After each test: no traceback in the log, and the state directory can be opened again."""
    with caplog.at_level(logging.DEBUG), running(state) as server:
        yield server
    assert not [r for r in caplog.records if r.exc_info or "Traceback" in r.getMessage()]
    store = Store.open(state)
    store.load()
    store.close()


@pytest.fixture
def clients(server: Server) -> Iterator[dict[str, Raw]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(Raw(server.port, name)) for name in ("anna", "bert", "mallory")}


@pytest.fixture
def mallory(clients: dict[str, Raw]) -> Raw:
    return clients["mallory"]


def together(clients: dict[str, Raw], holdout: int = 0) -> None:
    for client in clients.values():
        client.join(holdout=holdout)


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return status(caught.value)


def train(clients: dict[str, Raw], *, value: float = 0.5) -> None:
    """One ordinary round of all clients, and the evaluation after it if a client has a hold-out."""
    for client in clients.values():
        client.submit(client.wait().train, update_bytes(value))


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("day", [math.nan, math.inf, -math.inf, -1e300, 1e300])
def test_an_invalid_day_of_receipt_is_refused(server: Server, mallory: Raw, day: float) -> None:
    mallory.join()
    assert refused(lambda: mallory.file(received_at=day)) == ("INVALID_ARGUMENT", "USAGE_ERROR")
    assert not server.engine.state.tickets


@pytest.mark.parametrize(
    "sums",
    [
        {"loss_sum": 1.7e308},
        {"loss_sum": -1.7e308},
        {"loss_sum": math.nan},
        {"samples": MOST},
        {"samples": 6},
        {"score_sum": 1e308},
        {"confidences": [MOST] + [0] * 19},
        {"classes": tk.ClassTable(bins=[1] * 19, sums=[1.0], squares=[1.0])},
        {"classes": tk.ClassTable(bins=[MOST] + [0] * 19, sums=[1.0], squares=[1.0])},
        {"classes": tk.ClassTable(bins=[1] * 20, sums=[float("nan")], squares=[1.0])},
        {"classes": tk.ClassTable(bins=[0] * 20 * 501, sums=[0.0] * 501, squares=[0.0] * 501)},
    ],
)
def test_measurements_out_of_bounds_or_of_more_samples_than_announced_are_refused(
    server: Server, clients: dict[str, Raw], sums: dict[str, Any]
) -> None:
    together(clients, holdout=5)
    train(clients)
    anna = clients["anna"]
    work = anna.wait().evaluate
    assert work.evaluation
    wrong = tk.EvaluationSums(**({"samples": 5, "loss_sum": 1.0, "score_sum": 2.0} | sums))
    request = fed.ReportEvaluationRequest(evaluation=work.evaluation, version=work.version, holdout=wrong)
    assert refused(lambda: anna.stub.ReportEvaluation(request, **anna.options))[0] == "INVALID_ARGUMENT"
    assert server.engine.state.evaluation is not None
    assert not server.engine.state.evaluation.answers


@pytest.mark.parametrize("samples", [MOST, 2**40])
def test_announcing_more_samples_than_the_limit_is_refused(server: Server, mallory: Raw, samples: int) -> None:
    assert refused(lambda: mallory.join(samples=samples))[0] == "RESOURCE_EXHAUSTED"
    assert refused(lambda: mallory.join(holdout=samples))[0] == "RESOURCE_EXHAUSTED"
    assert not server.engine.state.members


def test_more_processed_samples_than_the_work_asks_for_are_refused(server: Server, clients: dict[str, Raw]) -> None:
    together(clients)
    mallory = clients["mallory"]
    work = mallory.wait().train
    assert refused(lambda: mallory.submit(work, samples_processed=MOST))[0] == "INVALID_ARGUMENT"
    mallory.submit(work, samples_processed=10, train_loss=1e308)
    with OperatorClient.of_state(server.engine.store.directory) as control:
        assert control.rounds()[0].received == 1


@pytest.mark.parametrize("session", ["9" * 5000 + ".x", "9" * 60 + ".x", "²." + "x", "\x00" * 300, "1" * 65])
def test_a_session_that_never_existed_is_unknown(mallory: Raw, session: str) -> None:
    mallory.join()
    mallory.session = session
    assert refused(lambda: mallory.wait(0))[0] in ("NOT_FOUND", "FAILED_PRECONDITION")
    beat = fed.HeartbeatRequest(session=session)
    assert refused(lambda: mallory.stub.Heartbeat(beat, **mallory.options))[0] in ("NOT_FOUND", "FAILED_PRECONDITION")


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_bytes_that_are_no_message_are_an_invalid_argument(server: Server, method: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        kinds: dict[tuple[bool, bool], Any] = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
        }
        stub = kinds[method.client_streaming, method.server_streaming](f"/puf.v1.Federation/{method.name}")
        junk = b"\xff\xff\xff\xff junk"
        sent = iter([junk]) if method.client_streaming else junk

        def call(**options: Any) -> None:
            reply = stub(sent, timeout=20, **options)
            if method.server_streaming:
                list(reply)

        with pytest.raises(grpc.RpcError) as caught:
            call(metadata=metadata("mallory"))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        # The server parses no bytes of a caller before it has identified the caller.
        sent = iter([junk]) if method.client_streaming else junk
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_text_of_unknown_callers_does_not_reach_the_log(
    server: Server, mallory: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    def decline(reason: str) -> Any:
        request = fed.DeclineWorkRequest(key=fed.WorkKey(round=1, attempt=1, part=fed.PART_MAIN), reason=reason)
        return lambda: mallory.stub.DeclineWork(request, **mallory.options)

    assert refused(decline("secret " * 5000))[0] == "NOT_FOUND"
    mallory.join()
    decline("secret " * 5000)()
    assert max(len(r.getMessage()) for r in caplog.records) < 1000


def test_a_request_key_is_short(server: Server, mallory: Raw) -> None:
    mallory.join()
    for key in ("", "k" * 129, "k\n2"):
        assert refused(partial(mallory.file, request_key=key)) == ("INVALID_ARGUMENT", "USAGE_ERROR")
    assert not server.engine.state.tickets


def test_a_refusal_in_any_script_reaches_its_caller(server: Server, mallory: Raw) -> None:
    mallory.join()
    request = fed.FollowTicketRequest(ticket_id="票" * 1000)
    with pytest.raises(grpc.RpcError) as caught:
        list(mallory.stub.FollowTicket(request, **mallory.options))
    assert status(caught.value) == ("NOT_FOUND", "NOT_FOUND")


# -- slow and many -----------------------------------------------------------------------------------------------------


class Slow:
    """Streams that send a header and a byte, and then nothing."""

    def __init__(self, client: Raw, work: fed.TrainWork, count: int) -> None:
        self._go = threading.Event()
        payload = update_bytes()
        header = client.header(work, payload)

        def trickle() -> Iterator[fed.SubmitUpdateRequest]:
            yield fed.SubmitUpdateRequest(header=header)
            yield fed.SubmitUpdateRequest(chunk=ts.Chunk(offset=0, data=payload[:1]))
            self._go.wait()

        self.calls: list[Any] = [client.stub.SubmitUpdate.future(trickle(), **client.options) for _ in range(count)]

    def codes(self) -> list[str]:
        return sorted(call.exception().code().name for call in self.calls)

    def stop(self) -> None:
        self._go.set()
        for call in self.calls:
            call.cancel()


def test_slow_streams_of_one_client_delay_no_other_client(tmp_path: Path) -> None:
    limits = {"uploads": 2, "uploads_per_client": 2, "stall_seconds": 2.0}
    directory = make_state(tmp_path / "slow", tiny_config(plan={"min_clients": 3}, limits=limits))
    with running(directory) as server, ExitStack() as stack:
        anna, bert, mallory = (stack.enter_context(Raw(server.port, n)) for n in ("anna", "bert", "mallory"))
        for client in (anna, bert, mallory):
            client.join()
        slow = Slow(mallory, mallory.wait().train, 5)
        stack.callback(slow.stop)
        # All permits are requested by streams that send nothing, and honest updates pass.
        for client in (anna, bert):
            assert client.submit(client.wait().train).duplicate is False
        # Three are refused at once because they are too many, two because they send nothing.
        assert slow.codes() == ["RESOURCE_EXHAUSTED"] * 5
        assert not [p for p in (directory / "spool").iterdir() if p.name.endswith(".part")]
        assert mallory.submit(mallory.wait().train).duplicate is False


def test_an_upload_that_is_too_slow_is_ended(tmp_path: Path) -> None:
    limits = {"stall_seconds": 0.2, "upload_rate": 1e6}
    directory = make_state(tmp_path / "crawl", tiny_config(plan={"min_clients": 1}, limits=limits))
    with running(directory) as server, Raw(server.port, "mallory") as mallory:
        mallory.join()
        work = mallory.wait().train
        payload = update_bytes()
        sent = frames(mallory.header(work, payload), payload, 1)
        paused = threading.Event()

        def crawling() -> Iterator[fed.SubmitUpdateRequest]:
            for frame in sent:
                paused.wait(0.05)
                yield frame

        with pytest.raises(grpc.RpcError, match="slower than") as caught:
            mallory.stub.SubmitUpdate(crawling(), **mallory.options)
        assert status(caught.value) == ("RESOURCE_EXHAUSTED", "TOO_MUCH")
        assert mallory.submit(work).duplicate is False


def test_large_calls_and_many_calls_are_refused_and_cost_no_memory(tmp_path: Path) -> None:
    limits = {"calls_per_client": 8}
    directory = make_state(tmp_path / "fat", tiny_config(plan={"min_clients": 3}, limits=limits))
    with running(directory) as server, Raw(server.port, "mallory") as mallory, Raw(server.port, "anna") as anna:
        mallory.join()
        channel: Any = mallory.channel
        wait = channel.unary_unary("/puf.v1.Federation/WaitForWork")
        fat = fed.WaitForWorkRequest(session=mallory.session, timeout_seconds=20).SerializeToString()
        # An unknown field of one and a half megabytes.
        fat += b"\xfa\x3f" + encoded(1_500_000) + bytes(1_500_000)
        calls = [wait.future(fat, **mallory.options) for _ in range(20)]
        assert {c.exception().code().name for c in calls} == {"RESOURCE_EXHAUSTED"}
        slim = fed.WaitForWorkRequest(session=mallory.session, timeout_seconds=20)
        many: list[Any] = [mallory.stub.WaitForWork.future(slim, **mallory.options) for _ in range(30)]
        over: queue.Queue[Any] = queue.Queue()
        for call in many:
            call.add_done_callback(over.put)
        # Eight wait for work; the others are refused at once.
        ended = [over.get(timeout=20) for _ in range(30 - 8)]
        assert {c.exception().code().name for c in ended} == {"RESOURCE_EXHAUSTED"}
        anna.join()
        assert over.empty()
        for call in many:
            call.cancel()


def encoded(number: int) -> bytes:
    """The value as a varint."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def test_a_flood_of_connections_leaves_room_for_members(tmp_path: Path) -> None:
    """The server closes silent connections and never has more than allowed. Connected members stay connected."""
    limits = {"connections": 20, "handshake_seconds": 1.0}
    directory = make_state(tmp_path / "flood", tiny_config(limits=limits))
    with running(directory) as server, Raw(server.port, "anna") as anna, ExitStack() as stack:
        anna.join()
        flood = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20)) for _ in range(60)
        ]
        anna.wait(0)
        for connection in flood:
            # The server sends its settings or nothing, and then closes the connection.
            while connection.recv(1000):
                pass
        with Raw(server.port, "bert") as bert:
            bert.join()


def test_changes_per_minute_are_bounded_and_others_are_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = {"writes_per_minute": 5, "refusals_per_minute": 3}
    directory = make_state(tmp_path / "writes", tiny_config(limits=limits))
    with (
        caplog.at_level(logging.WARNING),
        running(directory) as server,
        Raw(server.port, "mallory") as mallory,
        Raw(server.port, "anna") as anna,
    ):
        for number in range(5):
            mallory.join(samples=number + 1)
        size = (directory / "state.db-wal").stat().st_size
        for number in range(40):
            assert refused(partial(mallory.join, samples=100 + number)) == ("RESOURCE_EXHAUSTED", "TOO_MUCH")
        assert (directory / "state.db-wal").stat().st_size == size
        anna.join()
    assert 1 <= sum("refused" in r.getMessage() for r in caplog.records) <= 4


@pytest.mark.parametrize(
    "messages",
    [[], [fed.SubmitUpdateRequest()], [fed.SubmitUpdateRequest(chunk=ts.Chunk(offset=0, data=b"x"))]],
    ids=["no message", "empty message", "chunk first"],
)
def test_an_update_that_does_not_begin_with_its_header_is_refused(
    server: Server, mallory: Raw, messages: list[fed.SubmitUpdateRequest]
) -> None:
    with pytest.raises(grpc.RpcError, match="an update begins with its header") as caught:
        mallory.stub.SubmitUpdate(iter(messages), **mallory.options)
    assert status(caught.value) == ("INVALID_ARGUMENT", "INVALID_UPDATE")


def test_bytes_on_disk_are_bounded_per_client(tmp_path: Path) -> None:
    limits = {"client_bytes": len(update_bytes()) + 10}
    directory = make_state(tmp_path / "disk", tiny_config(plan={"min_clients": 2}, limits=limits))
    with running(directory) as server, Raw(server.port, "mallory") as mallory, Raw(server.port, "anna") as anna:
        mallory.join()
        anna.join()
        work = mallory.wait().train
        mallory.submit(work)
        assert refused(lambda: mallory.submit(work, update_bytes(0.7))) == ("RESOURCE_EXHAUSTED", "TOO_MUCH")
        anna.submit(anna.wait().train)


def test_clients_beyond_the_limit_are_refused_and_members_can_join_again(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "many", tiny_config(plan={"min_clients": 9}, limits={"max_clients": 3}))
    with running(directory) as server, ExitStack() as stack:
        crowd = [stack.enter_context(Raw(server.port, f"sybil-{i}")) for i in range(6)]
        for client in crowd[:3]:
            client.join()
        for client in crowd[3:]:
            assert refused(client.join) == ("RESOURCE_EXHAUSTED", "TOO_MUCH")
        crowd[0].join(instance="again")


def test_requests_per_hour_are_bounded(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "tickets", tiny_config(plan={"min_clients": 9}, limits={"tickets_per_hour": 2}))
    with running(directory) as server, Raw(server.port, "mallory") as mallory:
        mallory.join(samples=10)
        server.engine.call(lambda state, now: (replace(state, paused=True), None))
        for key in ("a", "b"):
            ticket = mallory.file(request_key=key).ticket.id
            mallory.stub.WithdrawUnlearning(fed.WithdrawUnlearningRequest(ticket_id=ticket), **mallory.options)
        assert refused(lambda: mallory.file(request_key="c")) == ("RESOURCE_EXHAUSTED", "TOO_MUCH")
