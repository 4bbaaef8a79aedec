"""One client does its worst, over real gRPC: it gets a status, the others and the state stay as they were."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.grpc.raw import Raw, status, update_bytes
from tests.running import make_state, metadata, running, tiny_config

from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.control import Control
from puf_server.serve import Server
from puf_server.store import Store

METHODS = list(fed.DESCRIPTOR.services_by_name["Federation"].methods)
MOST = 2**64 - 1


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "state", tiny_config(plan={"min_clients": 3, "evaluate_every": 1}))


@pytest.fixture
def server(state: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Server]:
    """Whatever a test does: no traceback in the log, and the state directory can be opened again."""
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
    """One ordinary round of everybody, and the measurement after it where somebody has a hold-out."""
    for client in clients.values():
        client.submit(client.wait().train, update_bytes(value))


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("day", [math.nan, math.inf, -math.inf, -1e300, 1e300])
def test_a_day_of_receipt_that_is_no_day_is_refused(server: Server, mallory: Raw, day: float) -> None:
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
    ],
)
def test_measurements_beyond_reason_or_beyond_what_was_announced_are_refused(
    server: Server, clients: dict[str, Raw], sums: dict[str, Any]
) -> None:
    together(clients, holdout=5)
    train(clients)
    anna = clients["anna"]
    work = anna.wait().evaluate
    assert work.survey
    wrong = tk.EvaluationSums(**({"samples": 5, "loss_sum": 1.0, "score_sum": 2.0} | sums))
    request = fed.ReportEvaluationRequest(survey=work.survey, version=work.version, holdout=wrong)
    assert refused(lambda: anna.stub.ReportEvaluation(request, **anna.options))[0] == "INVALID_ARGUMENT"
    assert server.engine.state.survey is not None
    assert not server.engine.state.survey.answers


@pytest.mark.parametrize("samples", [MOST, 2**40])
def test_announcing_more_samples_than_anybody_can_have_is_refused(server: Server, mallory: Raw, samples: int) -> None:
    assert refused(lambda: mallory.join(samples=samples))[0] == "RESOURCE_EXHAUSTED"
    assert refused(lambda: mallory.join(holdout=samples))[0] == "RESOURCE_EXHAUSTED"
    assert not server.engine.state.members


def test_computing_that_cannot_have_been_is_refused(server: Server, clients: dict[str, Raw]) -> None:
    together(clients)
    mallory = clients["mallory"]
    work = mallory.wait().train
    assert refused(lambda: mallory.submit(work, samples_processed=MOST))[0] == "INVALID_ARGUMENT"
    mallory.submit(work, samples_processed=10, train_loss=1e308)
    with Control.of_state(server.engine.store.directory) as control:
        assert control.rounds()[0].received == 1


@pytest.mark.parametrize("session", ["9" * 5000 + ".x", "9" * 60 + ".x", "²." + "x", "\x00" * 300, "1" * 65])
def test_a_session_that_never_was_is_unknown(mallory: Raw, session: str) -> None:
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
        # Nothing of a caller's bytes is looked at before it is known who calls.
        sent = iter([junk]) if method.client_streaming else junk
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_reasons_of_strangers_do_not_reach_the_log(
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
