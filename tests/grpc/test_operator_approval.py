"""Clients and tickets on hold and a collapsed model wait for the operator's approval, over real gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tests.grpc.raw import Raw, status, update_bytes
from tests.running import make_state, running, tiny_config

from puf_common.errors import NotFound, NotNow
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.cli.main import main
from puf_server.cli.operator_client import OperatorClient
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.runtime.server import Server

NAMES = ("anna", "bert", "carl")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    config = tiny_config(
        plan={"min_clients": 2, "start_clients": 3, "rounds": 1},
        forgetting={"max_recovery_rounds": 1, "collapse_ratio": 0.5},
        limits={"forget_share": 0.4},
    )
    return make_state(tmp_path / "state", config)


@pytest.fixture
def server(state: Path) -> Iterator[Server]:
    with running(state) as server:
        yield server


@pytest.fixture
def clients(server: Server) -> Iterator[dict[str, Raw]]:
    with ExitStack() as stack:
        found = {name: stack.enter_context(Raw(server.port, name)) for name in NAMES}
        for client in found.values():
            client.join(holdout=10)
        for client in found.values():
            client.submit(client.wait().train)
        while server.engine.state.version != 1:
            found["anna"].wait(0.05)
        yield found


@pytest.fixture
def control(server: Server, state: Path) -> Iterator[OperatorClient]:
    with OperatorClient.of_state(state) as control:
        yield control


def work(client: Raw) -> fed.WaitForWorkReply:
    reply = client.wait(15.0)
    assert reply.WhichOneof("work")
    return reply


def measure(client: Raw, score: float) -> None:
    asked = work(client).evaluate
    sums = tk.EvaluationSums(samples=10, loss_sum=1.0, score_sum=score)
    request = fed.ReportEvaluationRequest(evaluation=asked.evaluation, version=asked.version, holdout=sums)
    client.stub.ReportEvaluation(request, **client.options)


def forgotten(clients: dict[str, Raw], score: float) -> str:
    """Forgets carl. The others measure `score` of ten after recovery."""
    others = [clients["anna"], clients["bert"]]
    ticket = clients["carl"].file().ticket
    for client in others:
        measure(client, 8.0)
    for client in clients.values():
        train = work(client).train
        client.submit(train, update_bytes(0.5 * train.scale))
    for client in others:
        measure(client, 1.0)
    for client in others:
        client.submit(work(client).train)
    for client in others:
        measure(client, score)
    return str(ticket.id)


def test_a_collapsed_model_is_neither_ready_nor_exported_until_released(
    clients: dict[str, Raw], control: OperatorClient, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forgotten(clients, 2.0)
    newest = control.models()[0]
    assert newest.status == "unlearned"
    assert "model on hold: model 3 scores 20.0% after recovery" in control.status().waiting_for
    with pytest.raises(NotNow, match="not ready"):
        control.export(tmp_path / "model.safetensors", newest.version)
    with pytest.raises(NotNow, match="no trained model is ready"):
        control.export(tmp_path / "model.safetensors")
    assert main(["release", "--state", str(state)]) == 0
    assert control.models()[0].status == "ready"
    (ticket,) = control.tickets()
    assert (ticket.state, ticket.recovered) == (tk.TICKET_STATE_COMPLETED, False)
    with pytest.raises(NotNow, match="no model is on hold"):
        control.release()


def test_a_rollback_restores_the_model_bit_by_bit_and_reopens_the_ticket(
    clients: dict[str, Raw], control: OperatorClient, state: Path
) -> None:
    before = control.models()[0]
    ticket_id = forgotten(clients, 2.0)
    assert main(["rollback", "--state", str(state)]) == 0
    while control.status().position.model_version != 4:
        clients["anna"].wait(0.05)
    back = control.models()[0]
    assert (back.status, back.digest) == ("ready", before.digest)
    (ticket,) = control.tickets()
    assert (ticket.id, ticket.state) == (ticket_id, tk.TICKET_STATE_PENDING)
    assert "rolled back" in ticket.history[-1].note
    # carl takes part again and is forgotten.
    carl = clients["carl"]
    carl.join(instance="another process")
    for name in ("anna", "bert"):
        measure(clients[name], 8.0)
    for client in clients.values():
        train = work(client).train
        client.submit(train, update_bytes(0.25 * train.scale))
    assert work(carl).leave.reason == fed.LeaveOrder.REASON_FORGOTTEN
    for name in ("anna", "bert"):
        measure(clients[name], 8.0)
    assert control.tickets()[0].state == tk.TICKET_STATE_COMPLETED
    with pytest.raises(NotNow, match="nothing can be rolled back"):
        control.rollback()


def test_a_request_beyond_the_budget_is_filed_and_waits(
    clients: dict[str, Raw], control: OperatorClient, state: Path
) -> None:
    first = clients["carl"].file().ticket
    second = clients["bert"].file().ticket
    assert (first.held, bool(second.held)) == ("", True)
    assert second.state == tk.TICKET_STATE_PENDING
    with pytest.raises(NotFound):
        control.approve(ticket="t-unknown")
    assert main(["tickets", "approve", second.id, "--state", str(state)]) == 0
    assert not {t.held for t in control.tickets()} - {""}


def test_a_client_that_outweighs_all_others_is_on_hold_until_approved(
    clients: dict[str, Raw], control: OperatorClient, state: Path
) -> None:
    clients["carl"].join(samples=1_000_000)
    held = next(c for c in control.clients() if c.name == "carl")
    assert (held.status, "more than its share" in held.held) == ("held", True)
    control.extend(1)
    assert {clients[n].wait().train.key.round for n in ("anna", "bert")} == {2}
    assert clients["carl"].wait(0).WhichOneof("work") is None
    assert main(["clients", "allow", "carl", "--state", str(state)]) == 0
    assert next(c for c in control.clients() if c.name == "carl").status == "active"


def test_an_update_far_beyond_recent_rounds_is_refused_by_tensor_and_bound(
    clients: dict[str, Raw], control: OperatorClient
) -> None:
    control.extend(1)
    anna = clients["anna"]
    train = work(anna).train
    with pytest.raises(grpc.RpcError, match=r"the limit is 15.*tensor layer\.weight") as caught:
        anna.submit(train, update_bytes(50.0))
    assert status(caught.value) == ("INVALID_ARGUMENT", "INVALID_UPDATE")
    anna.submit(train, update_bytes(4.0))


def test_long_lists_come_in_pages(clients: dict[str, Raw], server: Server, control: OperatorClient) -> None:
    anna = clients["anna"]
    filed = anna.file().ticket.id

    def many(state: State, now: float) -> tuple[State, None]:
        wordy = replace(state.tickets[filed], history=state.tickets[filed].history * 300, state=TicketState.WITHDRAWN)
        more = {f"t-{i:04d}": replace(wordy, id=f"t-{i:04d}") for i in range(400)}
        return replace(state, tickets={**state.tickets, **more}), None

    server.engine.call(many)
    found = control.tickets()
    assert len({t.id for t in found}) == len(found) == 401
    assert 0 < len(anna.stub.ListMyTickets(fed.ListMyTicketsRequest(), **anna.options).tickets) < 400
