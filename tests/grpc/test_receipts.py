"""Keys, measurements, receipts and the operator's requests over gRPC."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.databases import sqlite
from tests.forgotten import OnDisk, trained_state
from tests.grpc.raw import Raw, status
from tests.running import make_state, running, tiny_config

from puf_common.config.exit_codes import Exit
from puf_common.errors import NotFound, NotNow
from puf_common.receipts import signed_receipt
from puf_common.receipts.evidence import BINS
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.cli.main import main
from puf_server.cli.operator_client import OperatorClient
from puf_server.engine import receipts
from puf_server.runtime.server import Server

NAMES = ("anna", "bert", "cleo")
BINNED = [0] * (BINS - 1) + [10]
ATTACK: dict[str, Any] = {
    "threshold": 0.3,
    "forget_members": 6,
    "forget_samples": 10,
    "holdout_members": 2,
    "holdout_samples": 4,
}
SUMS: dict[str, Any] = {"samples": 10, "loss_sum": 4.0, "score_sum": 9.0, "confidences": BINNED}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    config = tiny_config(plan={"rounds": 1, "min_clients": 3}, forgetting={"measure_seconds": 60.0})
    with running(make_state(tmp_path / "state", config)) as server:
        yield server


@pytest.fixture
def everyone(server: Server) -> Iterator[dict[str, Raw]]:
    clients = {name: Raw(server.port, name) for name in NAMES}
    for client in clients.values():
        client.join(holdout=4)
    for client in clients.values():
        client.submit(client.wait().train)
    for _ in range(500):
        if server.engine.state.number == 1:
            break
        threading.Event().wait(0.02)
    yield clients
    for client in clients.values():
        client.channel.close()


def evaluated(client: Raw, score: float, **training: Any) -> fed.EvaluateWork:
    """Answers the open evaluation."""
    work = client.wait().evaluate
    assert work.version
    holdout = tk.EvaluationSums(samples=4, loss_sum=1.0, score_sum=4 * score)
    request = fed.ReportEvaluationRequest(evaluation=work.evaluation, version=work.version, holdout=holdout)
    if training:
        request.training.CopyFrom(tk.EvaluationSums(**training))
    client.stub.ReportEvaluation(request, **client.options)
    return work


def ticket_of(client: Raw) -> tk.Ticket:
    return client.stub.ListMyTickets(fed.ListMyTicketsRequest(), **client.options).tickets[0]


def follow(client: Raw, ticket_id: str, there: Callable[[tk.Ticket], bool]) -> tk.Ticket:
    """The ticket as soon as it meets the condition."""
    stream = client.stub.FollowTicket(fed.FollowTicketRequest(ticket_id=ticket_id), **client.options)
    return next(reply.ticket for reply in stream if there(reply.ticket))


def measure(client: Raw, ticket: tk.Ticket, version: int, **more: Any) -> None:
    request = fed.ReportMeasurementRequest(ticket_id=ticket.id, version=version, forget=tk.EvaluationSums(**SUMS))
    for key, value in more.items():
        getattr(request, key).CopyFrom(value)
    client.stub.ReportMeasurement(request, **client.options)


def receipt_of(client: Raw, ticket_id: str) -> bytes:
    return client.stub.GetReceipt(fed.GetReceiptRequest(ticket_id=ticket_id), **client.options).receipt


def forgotten(everyone: dict[str, Raw]) -> tk.Ticket:
    """Forgets cleo with honest work of all clients. Returns the completed ticket."""
    anna, bert, cleo = everyone.values()
    filed = cleo.file().ticket.id
    for client in (anna, bert):
        assert evaluated(client, 0.8, **SUMS).training_side
    for client in (anna, bert, cleo):
        client.submit(client.wait().train)
    ticket = follow(cleo, filed, lambda t: t.state == tk.TICKET_STATE_APPLIED)
    assert ticket.retained_pending
    assert [(r.version, r.training.samples) for r in ticket.retained] == [(1, 20)]
    for client in (anna, bert):
        evaluated(client, 0.8, **SUMS)
    ticket = ticket_of(cleo)
    assert not ticket.retained_pending
    assert [(r.version, r.training.loss_sum) for r in ticket.retained] == [(1, 8.0), (2, 8.0)]
    assert list(ticket.retained[1].training.confidences) == [2 * n for n in BINNED]
    attack = tk.MembershipAttack(**ATTACK)
    holdout = tk.EvaluationSums(samples=4, loss_sum=2.0, score_sum=3.0)
    measure(cleo, ticket, 1, yeom=attack, song=attack, holdout=holdout)
    measure(cleo, ticket, 2, yeom=attack)
    ticket = ticket_of(cleo)
    assert ticket.state == tk.TICKET_STATE_COMPLETED
    return ticket


def test_the_servers_key_is_sent_and_stays_the_same(server: Server, tmp_path: Path) -> None:
    with Raw(server.port, "anna") as anna:
        told = anna.stub.Describe(fed.DescribeRequest(), **anna.options).server_key
        assert len(told) == 32
        assert anna.join().server_key == told


def test_a_receipt_is_there_for_its_owner_once_the_ticket_is_completed(everyone: dict[str, Raw]) -> None:
    anna, _, cleo = everyone.values()
    key = anna.stub.Describe(fed.DescribeRequest(), **anna.options).server_key
    ticket = forgotten(everyone)
    receipt = signed_receipt.read(receipt_of(cleo, ticket.id))
    assert receipt.key == key
    assert (receipt.ticket, receipt.client) == (ticket.id, "cleo")
    mine = receipt.content.as_json()["measured_by_client"]
    assert mine["before"]["yeom"]["forget"]["members"] == 6
    assert mine["before"]["holdout"]["accuracy"] == 0.75
    assert mine["unlearned"]["song"] is None
    assert mine["verdict"] == "too few samples"
    # Other clients get no receipt and do not learn that it exists.
    with pytest.raises(grpc.RpcError) as caught:
        receipt_of(anna, ticket.id)
    assert status(caught.value) == ("NOT_FOUND", "NOT_FOUND")


def test_before_completion_there_is_no_receipt(everyone: dict[str, Raw]) -> None:
    cleo = everyone["cleo"]
    ticket = cleo.file().ticket
    with pytest.raises(grpc.RpcError) as caught:
        receipt_of(cleo, ticket.id)
    assert status(caught.value) == ("FAILED_PRECONDITION", "NOT_NOW")


@pytest.mark.parametrize(
    "wrong",
    [
        {"yeom": tk.MembershipAttack(**(ATTACK | {"forget_members": 11}))},
        {"song": tk.MembershipAttack(**(ATTACK | {"threshold": float("nan")}))},
        {"song": tk.MembershipAttack()},
        {"holdout": tk.EvaluationSums(samples=4, loss_sum=float("inf"), score_sum=1.0)},
        {"holdout": tk.EvaluationSums(samples=4, loss_sum=1.0, score_sum=1.0, confidences=[1, 2])},
        {"forget": tk.EvaluationSums(samples=4, loss_sum=1.0, score_sum=1.0, confidences=[1] * BINS)},
        {"own": tk.RankComparison(auc=1.5, forget_samples=4, unseen_samples=4)},
        {"pool": tk.RankComparison(auc=float("nan"), forget_samples=4, unseen_samples=4)},
        {"pool": tk.RankComparison(auc=0.5, forget_samples=4)},
        {"own": tk.RankComparison(auc=0.5, forget_samples=4, unseen_samples=1 << 60)},
    ],
)
def test_impossible_measurements_are_refused(everyone: dict[str, Raw], wrong: dict[str, Any]) -> None:
    cleo = everyone["cleo"]
    ticket = cleo.file().ticket
    with pytest.raises(grpc.RpcError) as caught:
        measure(cleo, ticket, 1, **wrong)
    assert status(caught.value) == ("INVALID_ARGUMENT", "USAGE_ERROR")


def test_presenting_a_receipt_to_a_server_that_has_the_ticket_changes_nothing(
    server: Server, everyone: dict[str, Raw]
) -> None:
    anna, _, cleo = everyone.values()
    file = receipt_of(cleo, forgotten(everyone).id)
    before = server.engine.state.tickets
    reply = cleo.stub.PresentReceipt(fed.PresentReceiptRequest(receipt=file), **cleo.options)
    assert not reply.reopened
    assert reply.ticket.state == tk.TICKET_STATE_COMPLETED
    assert server.engine.state.tickets == before
    for client, shown, expected in (
        (anna, file, ("PERMISSION_DENIED", "NOT_YOURS")),
        (cleo, file.replace(b"cleo", b"anna"), ("DATA_LOSS", "CORRUPTED")),
        (cleo, b"junk", ("DATA_LOSS", "CORRUPTED")),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            client.stub.PresentReceipt(fed.PresentReceiptRequest(receipt=shown), **client.options)
        assert status(caught.value) == expected


def test_measurements_of_older_clients_are_accepted(everyone: dict[str, Raw]) -> None:
    anna, bert, cleo = everyone.values()
    filed = cleo.file().ticket.id
    evaluated(anna, 0.8)
    evaluated(bert, 0.8, **SUMS)
    for client in (anna, bert, cleo):
        client.submit(client.wait().train)
    (only,) = follow(cleo, filed, lambda t: t.state == tk.TICKET_STATE_APPLIED).retained
    assert only.training.samples == 10


class TestOperator:
    @pytest.fixture
    def control(self, server: Server) -> Iterator[OperatorClient]:
        with OperatorClient(f"127.0.0.1:{server.operator_port}") as control:
            yield control

    def operator(self, server: Server) -> list[str]:
        return ["--operator", f"127.0.0.1:{server.operator_port}"]

    def test_files_for_a_client_that_is_gone(
        self, server: Server, everyone: dict[str, Raw], control: OperatorClient, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(NotFound, match="nobody"):
            control.forget("nobody")
        flags = ["--reference", "case 9", "--received", "2026-01-02"]
        assert main(["forget", "cleo", *flags, *self.operator(server)]) == Exit.OK
        assert "filed as" in capsys.readouterr().out
        ticket = ticket_of(everyone["cleo"])
        assert (ticket.filed_by, ticket.request.reference) == ("operator", "case 9")
        assert ticket.deadline_at == datetime.fromisoformat("2026-01-02").timestamp() + 30 * 86400
        assert "filed by the operator" in ticket.history[0].note
        assert main(["forget", "cleo", *self.operator(server)]) == Exit.OK
        assert "already asks for this" in capsys.readouterr().out
        # The same ticket when the client asks afterwards.
        assert everyone["cleo"].file().duplicate
        db = sqlite(server.engine.store)
        (facts,) = db.execute("SELECT facts FROM audit WHERE event = 'ticket.filed'").fetchone()
        assert json.loads(facts)["by"] == "operator"

    def test_gets_receipts_of_all_clients(
        self,
        server: Server,
        everyone: dict[str, Raw],
        control: OperatorClient,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        ticket = forgotten(everyone)
        assert main(["receipt", ticket.id, "--out", str(tmp_path / "out"), *self.operator(server)]) == Exit.OK
        assert "written" in capsys.readouterr().out
        file = (tmp_path / "out" / f"receipt-{ticket.id}.json").read_bytes()
        assert signed_receipt.read(file).ticket == ticket.id
        assert (tmp_path / "out" / f"receipt-{ticket.id}.html").exists()
        with pytest.raises(NotFound):
            control.receipt("t-none")

    def test_not_before_it_is_completed(self, everyone: dict[str, Raw], control: OperatorClient) -> None:
        with pytest.raises(NotNow):
            control.receipt(everyone["anna"].file().ticket.id)


def test_an_export_of_a_model_that_knew_the_client_is_on_the_receipt(tmp_path: Path) -> None:
    directory = trained_state(tmp_path / "state")
    with running(directory) as server, OperatorClient(f"127.0.0.1:{server.operator_port}") as control:
        control.export(tmp_path / "model.safetensors", 1)
        digest = server.engine.state.models[1].digest
    with OnDisk(directory) as f:
        f.join(*NAMES)
        told = signed_receipt.read(receipts.issue(f.engine, f.forget("cleo"))).content.as_json()
    assert [(e["version"], e["digest"]) for e in told["exports"]] == [(1, digest)]
