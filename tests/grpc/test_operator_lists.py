"""The operator's lists: filters and pages, and the audit log as pages and as a stream, over real gRPC."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from tests.grpc.raw import Raw
from tests.running import make_state, running, tiny_config

from puf_common import audit_chain
from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import operator_pb2_grpc as rpc
from puf_common.v1 import tickets_pb2 as tk
from puf_server.maintenance.backup import backup
from puf_server.runtime.server import Server
from puf_server.storage.database import append_audit, connect

NAMES = ("anna", "bert", "carl")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "state", tiny_config(plan={"min_clients": 3, "rounds": 3}))


@pytest.fixture
def server(state: Path) -> Iterator[Server]:
    with running(state) as server:
        yield server


@pytest.fixture
def stub(server: Server) -> Iterator[rpc.OperatorStub]:
    with grpc.insecure_channel(f"127.0.0.1:{server.operator_port}") as channel:
        yield rpc.OperatorStub(channel)


@pytest.fixture
def clients(server: Server) -> Iterator[dict[str, Raw]]:
    with ExitStack() as stack:
        found = {name: stack.enter_context(Raw(server.port, name)) for name in NAMES}
        for client in found.values():
            client.join()
        yield found


def train(clients: dict[str, Raw], rounds: int) -> None:
    for _ in range(rounds):
        for client in clients.values():
            client.submit(client.wait().train)


def entries(stub: rpc.OperatorStub, **request: object) -> list[op.AuditEntry]:
    return list(stub.ListAudit(op.ListAuditRequest(**request)).entries)  # type: ignore[arg-type]


def test_clients_are_filtered_by_name_and_status_and_paged(stub: rpc.OperatorStub, clients: dict[str, Raw]) -> None:
    def names(**request: object) -> tuple[list[str], int]:
        reply = stub.ListClients(op.ListClientsRequest(**request))  # type: ignore[arg-type]
        return [c.name for c in reply.clients], reply.total

    assert names() == (["anna", "bert", "carl"], 3)
    assert names(offset=1, limit=1) == (["bert"], 3)
    assert names(offset=3) == ([], 3)
    assert names(name="AR") == (["carl"], 1)
    assert names(status="alive") == (["anna", "bert", "carl"], 3)
    assert names(status="absent") == ([], 0)
    clients["carl"].file()
    assert names(status="leaving") == (["carl"], 1)
    assert names(status="active") == (["anna", "bert"], 2)
    assert names(status="alive") == (["anna", "bert", "carl"], 3)


def test_rounds_are_filtered_by_kind_and_paged(stub: rpc.OperatorStub, clients: dict[str, Raw]) -> None:
    train(clients, 2)
    clients["anna"].wait()

    def rounds(**request: object) -> list[op.RoundInfo]:
        return list(stub.ListRounds(op.ListRoundsRequest(**request)).rounds)  # type: ignore[arg-type]

    assert [(r.number, r.phase) for r in rounds()] == [(3, "collecting"), (2, "committed"), (1, "committed")]
    assert [r.number for r in rounds(limit=1, before=3)] == [2]
    assert [r.number for r in rounds(before=2)] == [1]
    assert rounds(before=1) == []
    assert rounds(kind="unlearn") == []
    assert len(rounds(kind="train")) == 3
    first = rounds(before=2)[0]
    assert first.version == 1
    assert first.opened_at <= first.closed_at <= first.committed_at


def test_tickets_and_models_are_filtered_and_paged(stub: rpc.OperatorStub, clients: dict[str, Raw]) -> None:
    train(clients, 1)
    # The next round has begun: version 1 contains all clients.
    clients["anna"].wait()
    first, second = (clients[name].file().ticket.id for name in ("bert", "carl"))

    def tickets(**request: object) -> tuple[list[str], int]:
        reply = stub.ListTickets(op.ListTicketsRequest(**request))  # type: ignore[arg-type]
        return [t.id for t in reply.tickets], reply.total

    assert tickets() == ([second, first], 2)
    assert tickets(limit=1) == ([second], 2)
    assert tickets(ticket_id=first) == ([first], 1)
    assert tickets(ticket_id="t-unknown") == ([], 0)
    assert tickets(states=[tk.TICKET_STATE_COMPLETED]) == ([], 0)
    assert tickets(states=[tk.TICKET_STATE_PENDING, tk.TICKET_STATE_SCHEDULED]) == ([second, first], 2)
    models = stub.ListModels(op.ListModelsRequest(limit=1))
    assert ([m.version for m in models.models], models.total) == ([1], 2)
    assert stub.ListModels(op.ListModelsRequest(status="deleted")).total == 0


def test_the_audit_log_is_paged_and_filtered(stub: rpc.OperatorStub, clients: dict[str, Raw]) -> None:
    newest = entries(stub)
    assert [e.number for e in newest] == list(range(len(newest), 0, -1))
    assert [e.number for e in entries(stub, before=3)] == [2, 1]
    assert entries(stub, before=1) == []
    assert len(entries(stub, limit=2)) == 2
    joined = entries(stub, event="client.")
    assert sorted(json.loads(e.facts)["client"] for e in joined) == list(NAMES)
    assert [json.loads(e.facts)["client"] for e in entries(stub, text='"client":"Bert"')] == ["bert"]
    assert entries(stub, text="100%_of") == []
    assert entries(stub, event="lient.") == []


def test_the_entries_of_one_round_are_found(stub: rpc.OperatorStub, clients: dict[str, Raw]) -> None:
    train(clients, 1)
    clients["anna"].wait()
    assert [e.event for e in entries(stub, round=1)] == ["round.committed", "round.closed", "round.opened"]
    assert entries(stub, round=2**64 - 1) == []
    assert entries(stub, before=2**64 - 1)


def test_the_stream_has_every_entry_once_and_verifies(
    stub: rpc.OperatorStub, clients: dict[str, Raw], state: Path, tmp_path: Path
) -> None:
    found: list[op.AuditEntry] = []
    arrived = threading.Condition()
    call = stub.FollowAudit(op.FollowAuditRequest())

    def read() -> None:
        try:
            for reply in call:
                with arrived:
                    found.extend(reply.entries)
                    arrived.notify_all()
        except grpc.RpcError:
            pass

    def until(event: str) -> None:
        with arrived:
            assert arrived.wait_for(lambda: any(e.event == event for e in found), 20)

    reader = threading.Thread(target=read)
    reader.start()
    until("client.joined")
    train(clients, 1)
    until("round.committed")
    # Another process appends an entry, too.
    backup(state, tmp_path / "backup.tar")
    until("backup.made")
    call.cancel()  # type: ignore[no-untyped-call]
    reader.join()
    assert [e.number for e in found] == list(range(1, len(found) + 1))
    read_back = [audit_chain.AuditEntry(e.number, e.at, e.event, e.facts, e.hash) for e in found]
    assert audit_chain.follow(read_back).number == len(found)
    rest = next(iter(stub.FollowAudit(op.FollowAuditRequest(after=len(found) - 1)))).entries
    assert rest[0] == found[-1]


def test_a_long_log_arrives_whole(stub: rpc.OperatorStub, server: Server) -> None:
    db = connect(server.engine.store.layout.database)
    with db:
        db.execute("BEGIN IMMEDIATE")
        for i in range(3000):
            append_audit(db, 1e9 + i, "test.line", {"number": i, "text": "x" * 1000})
    db.close()
    numbers: list[int] = []
    for reply in stub.FollowAudit(op.FollowAuditRequest()):
        numbers += [e.number for e in reply.entries]
        if numbers[-1] == 3001:
            break
    assert numbers == list(range(1, 3002))
    assert len(entries(stub, limit=5000)) == 1000


def test_a_server_that_stops_ends_the_stream_at_once(state: Path) -> None:
    with running(state) as server, grpc.insecure_channel(f"127.0.0.1:{server.operator_port}") as channel:
        call = iter(rpc.OperatorStub(channel).FollowAudit(op.FollowAuditRequest()))
        assert next(call).entries
        server.engine.call(lambda s, now: (s.note("test.line", now), None))
        assert next(call).entries[-1].event == "test.line"
        rpc.OperatorStub(channel).Stop(op.StopRequest())
        with pytest.raises(grpc.RpcError) as error:
            list(call)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_status_states_the_key_that_signs_receipts(stub: rpc.OperatorStub, server: Server) -> None:
    assert stub.Status(op.StatusRequest()).server_key == server.engine.store.key.public


def test_an_unknown_state_of_tickets_is_refused(stub: rpc.OperatorStub) -> None:
    """A newer operator's command may know more states."""
    with pytest.raises(grpc.RpcError) as caught:
        stub.ListTickets(op.ListTicketsRequest(states=[99]))  # type: ignore[list-item]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
