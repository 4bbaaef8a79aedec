"""`--trace` with a real server and its clients in this process: one trace for a round, one for a request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.running import make_state, metadata, running, tiny_config

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.settings import Offer, Running
from puf_client.state.directory import StateDirectory
from puf_client.transport.grpc import GrpcTransport
from puf_client.unlearning.receipt import collect
from puf_common.errors import PufError, Unavailable
from puf_common.tracing import process
from puf_common.tracing.places import TRACEPARENT, Place, place_of_round, place_of_ticket
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import federation_pb2_grpc as rpc
from puf_common.v1 import tickets_pb2 as tk
from puf_server.runtime.server import Server

pytest.importorskip("opentelemetry.sdk", reason="install puf-fl[otel]")

CLIENTS = ("anna", "bert", "cleo")


class Spans:
    """The finished spans of this process."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.exporter = InMemorySpanExporter()

    def of(self, place: Place) -> list[Any]:
        tracer = process.active()
        assert tracer is not None
        tracer.flush()
        return [s for s in self.exporter.get_finished_spans() if s.context.trace_id == place.trace]

    def named(self, name: str, place: Place) -> list[Any]:
        return [span for span in self.of(place) if span.name == name]


@pytest.fixture
def spans() -> Iterator[Spans]:
    from puf_common.tracing.tracer import Tracer

    found = Spans()
    process.use(Tracer("test", found.exporter))
    yield found
    process.stop()


def work_of(stack: ExitStack, server: Server, name: str) -> None:
    """A client that works in a thread until the end of the block."""
    session = connect(f"127.0.0.1:{server.port}", Offer(samples=10), name=name, running=Running(wait_seconds=0.5))

    def work() -> None:
        # The end of the block closes the session while it waits.
        with suppress(Unavailable):
            for task in session:
                if isinstance(task, Assignment):
                    task.submit({n: a + np.asarray(0.001, a.dtype) for n, a in task.weights.items()})

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    stack.callback(thread.join, 30)
    stack.callback(session.close)


def forgotten(server: Server, tmp_path: Path) -> tk.Ticket:
    """The ticket of cleo after its end, with its receipt fetched."""
    with GrpcTransport(f"127.0.0.1:{server.port}", "cleo") as transport:
        request = tk.UnlearningRequest(request_key="r1", scope=tk.SCOPE_CLIENT)
        ticket = transport.file_unlearning(pb.FileUnlearningRequest(request=request)).ticket
        for reply in transport.follow_ticket(ticket.id):
            ticket = reply.ticket
        state = StateDirectory.of("f-test", "cleo", tmp_path / "client")
        with process.span("client.receipt", place_of_ticket("f-test", ticket.id), ticket=ticket.id):
            collect(transport, state, ticket.id, tmp_path)
    return ticket


def parents(found: list[Any]) -> dict[int, str]:
    return {span.context.span_id: span.name for span in found}


def test_one_trace_has_the_spans_of_server_and_clients(tmp_path: Path, spans: Spans) -> None:
    config = tiny_config(plan={"min_clients": 3}, forgetting={"max_recovery_rounds": 1})
    with ExitStack() as stack:
        server = stack.enter_context(running(make_state(tmp_path / "server", config)))
        for name in CLIENTS:
            work_of(stack, server, name)
        never = threading.Event()
        while server.engine.state.trained < 2:
            never.wait(0.02)
        ticket = forgotten(server, tmp_path)
        state = server.engine.state

    first = spans.of(place_of_round("f-test", 1))
    names, by_id = [span.name for span in first], parents(first)
    assert {n: names.count(n) for n in ("round", "round.updates", "round.fold", "round.commit")} == {
        "round": 1, "round.updates": 1, "round.fold": 1, "round.commit": 1,
    }  # fmt: skip
    for name in ("client.download", "server.download", "client.train", "client.upload", "server.upload"):
        assert names.count(name) == 3, name
    below = {s.name: by_id[s.parent.span_id] for s in first if s.parent is not None}
    assert below["round.fold"] == below["client.train"] == below["client.upload"] == "round"
    assert below["server.upload"] == "client.upload"
    assert below["server.download"] == "client.download"
    [root] = [span for span in first if span.name == "round"]
    assert root.parent is None
    assert root.attributes["puf.model.digest"] == state.models[state.records[1].version].digest
    assert "puf.client" not in root.attributes
    assert {s.attributes["puf.client"] for s in first if s.name == "server.upload"} == set(CLIENTS)

    place = place_of_ticket("f-test", ticket.id)
    request = {span.name: span for span in spans.of(place)}
    assert {"ticket", "ticket.pending", "ticket.scheduled", "client.receipt", "server.receipt"} <= set(request)
    assert parents(list(request.values()))[request["server.receipt"].parent.span_id] == "client.receipt"
    assert request["ticket"].attributes["puf.state"] == "completed"
    assert request["ticket"].attributes["puf.ticket"] == ticket.id
    [unlearning] = spans.named("round", place_of_round("f-test", ticket.applied_round))
    assert [link.context.trace_id for link in unlearning.links] == [place.trace]
    assert unlearning.attributes["puf.kind"] == "unlearn"
    own = spans.named("client.train", place_of_round("f-test", ticket.applied_round))
    assert [span.attributes.get("puf.ticket") for span in own if span.attributes["puf.client"] == "cleo"] == [ticket.id]


def test_a_caller_cannot_put_a_span_of_the_server_into_another_trace(tmp_path: Path, spans: Spans) -> None:
    import grpc

    foreign = place_of_round("f-other", 1)
    with running(make_state(tmp_path)) as server, ExitStack() as stack:
        session = stack.enter_context(connect(f"127.0.0.1:{server.port}", Offer(samples=10), name="anna"))
        assert session.step() is None
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{server.port}"))
        headers = (*metadata("anna"), (TRACEPARENT, foreign.written(sampled=True)))
        assert list(rpc.FederationStub(channel).FetchModel(pb.FetchModelRequest(version=0), metadata=headers))
    assert spans.of(foreign) == []
    [span] = spans.named("server.download", place_of_round("f-test", 0))
    assert span.parent.span_id == place_of_round("f-test", 0).span


def test_the_span_of_a_refused_upload_names_the_kind_of_error_only(tmp_path: Path, spans: Spans) -> None:
    with (
        running(make_state(tmp_path)) as server,
        GrpcTransport(f"127.0.0.1:{server.port}", "anna") as transport,
        pytest.raises(PufError),
    ):
        transport.submit_update(pb.UpdateHeader(), b"")
    [span] = spans.named("server.upload", place_of_round("f-test", 0))
    assert not span.status.is_ok
    assert span.status.description.isidentifier()
    assert not span.events
