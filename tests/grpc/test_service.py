"""The server over real gRPC: correct calls and wrong ones."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.grpc.raw import Raw, frames, nan_update, status, update_bytes
from tests.running import make_state, running, tiny_config, tiny_payload

from puf_common.errors import UsageError
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tensors_pb2 as ts
from puf_common.v1 import tickets_pb2 as tk
from puf_server.cli.operator_client import OperatorClient
from puf_server.ingest.transfer_statistics import TransferRate
from puf_server.runtime.server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(make_state(tmp_path / "state")) as server:
        yield server


@pytest.fixture
def anna(server: Server) -> Iterator[Raw]:
    with Raw(server.port, "anna") as client:
        yield client


@pytest.fixture
def bert(server: Server) -> Iterator[Raw]:
    with Raw(server.port, "bert") as client:
        yield client


def work_of(client: Raw) -> fed.TrainWork:
    reply = client.wait()
    assert reply.WhichOneof("work") == "train"
    return reply.train


def test_two_clients_average_their_updates(server: Server, anna: Raw, bert: Raw) -> None:
    anna.join(samples=30)
    bert.join(samples=10)
    anna.submit(work_of(anna), update_bytes(1.0, steps=5), samples=30)
    bert.submit(work_of(bert), update_bytes(2.0, steps=9), samples=10)
    second = work_of(anna)
    assert second.key.round == 2
    before, after = struct.unpack("<12fq", tiny_payload()), struct.unpack("<12fq", anna.fetch(second.base_version))
    assert after[:9] == pytest.approx([v + 1.25 for v in before[:9]])
    assert after[9:12] == pytest.approx([1.25] * 3)
    assert after[12] == 9


def test_resubmitting_is_idempotent_and_other_content_is_a_conflict(anna: Raw, bert: Raw) -> None:
    anna.join()
    bert.join()
    work = work_of(anna)
    assert anna.submit(work).duplicate is False
    assert anna.submit(work).duplicate is True
    with pytest.raises(grpc.RpcError) as caught:
        anna.submit(work, update_bytes(0.25))
    assert status(caught.value) == ("ALREADY_EXISTS", "CONFLICT")


def test_an_update_sent_again_after_its_commit_is_acknowledged(server: Server, anna: Raw, bert: Raw) -> None:
    """A client whose OK was lost can tell a counted update from a lost one."""
    anna.join()
    bert.join()
    work = work_of(anna)
    anna.submit(work)
    bert.submit(work_of(bert))
    assert work_of(anna).key.round == 2
    again = anna.submit(work)
    assert again.duplicate
    assert again.position.round == 1
    with pytest.raises(grpc.RpcError) as caught:
        anna.submit(work, update_bytes(0.25))
    assert status(caught.value) == ("FAILED_PRECONDITION", "STALE_ROUND")
    # The second sending entered no sum.
    bert.submit(work_of(bert))
    assert work_of(anna).key.round == 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"samples": 11}, ("INVALID_ARGUMENT", "INVALID_UPDATE")),
        ({"samples": 0}, ("INVALID_ARGUMENT", "INVALID_UPDATE")),
        ({"applied_scale": -2.0}, ("INVALID_ARGUMENT", "INVALID_UPDATE")),
        ({"applied_scale": float("nan")}, ("INVALID_ARGUMENT", "INVALID_UPDATE")),
        ({"base_version": 7}, ("FAILED_PRECONDITION", "STALE_ROUND")),
        ({"byte_length": 1 << 50}, ("INVALID_ARGUMENT", "INVALID_UPDATE")),
        ({"byte_length": 1}, ("INVALID_ARGUMENT", "INVALID_UPDATE")),
        ({"digest": b"short"}, ("INVALID_ARGUMENT", "INVALID_UPDATE")),
        ({"digest": bytes(32)}, ("DATA_LOSS", "CORRUPTED")),
        ({"manifest_fingerprint": bytes(32)}, ("FAILED_PRECONDITION", "MISMATCH")),
        (
            {"key": fed.WorkKey(membership=1, round=9, attempt=1, part=fed.PART_MAIN)},
            ("FAILED_PRECONDITION", "STALE_ROUND"),
        ),
        ({"key": fed.WorkKey(membership=1, round=1, attempt=1)}, ("INVALID_ARGUMENT", "INVALID_UPDATE")),
        (
            {"key": fed.WorkKey(membership=2, round=1, attempt=1, part=fed.PART_MAIN)},
            ("FAILED_PRECONDITION", "STALE_ROUND"),
        ),
    ],
)
def test_wrong_headers_are_refused(anna: Raw, bert: Raw, fields: dict[str, Any], expected: tuple[str, str]) -> None:
    anna.join()
    bert.join()
    work = work_of(anna)
    with pytest.raises(grpc.RpcError) as caught:
        anna.submit(work, **fields)
    assert status(caught.value) == expected
    assert anna.submit(work).duplicate is False


def test_a_value_that_is_not_finite_is_refused_with_the_tensors_name(anna: Raw, bert: Raw) -> None:
    anna.join()
    bert.join()
    work = work_of(anna)
    for chunk in (1, 3, 7, 64):
        payload = nan_update()
        with pytest.raises(grpc.RpcError, match=r"layer\.bias") as caught:
            anna.send(anna.header(work, payload), payload, chunk)
        assert status(caught.value) == ("INVALID_ARGUMENT", "INVALID_UPDATE")


def test_streams_that_are_cut_reordered_or_too_long_are_refused(server: Server, anna: Raw, bert: Raw) -> None:
    anna.join()
    bert.join()
    work = work_of(anna)
    payload = update_bytes()
    whole = list(frames(anna.header(work, payload), payload))
    extra = fed.SubmitUpdateRequest(chunk=ts.Chunk(offset=len(payload), data=b"more"))
    empty = fed.SubmitUpdateRequest(chunk=ts.Chunk(offset=0, data=b""))
    wrong: dict[str, list[fed.SubmitUpdateRequest]] = {
        "cut": whole[:-1],
        "reordered": [whole[0], whole[2], whole[1], *whole[3:]],
        "repeated": [whole[0], whole[1], *whole[1:]],
        "too long": [*whole, extra],
        "no header": whole[1:],
        "two headers": [whole[0], *whole],
        "nothing": [],
        "empty chunk": [whole[0], empty, *whole[1:]],
    }
    for name, stream in wrong.items():
        with pytest.raises(grpc.RpcError) as caught:
            anna.stub.SubmitUpdate(iter(stream), **anna.options)
        assert caught.value.code().name in ("INVALID_ARGUMENT", "DATA_LOSS", "RESOURCE_EXHAUSTED"), name
    assert list((server.engine.store.directory / "spool").iterdir()) == []
    assert anna.submit(work).duplicate is False


def test_callers_without_a_valid_name_are_refused(server: Server) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_unary(
            "/puf.v1.Federation/ListMyTickets",
            request_serializer=fed.ListMyTicketsRequest.SerializeToString,
            response_deserializer=fed.ListMyTicketsReply.FromString,
        )
        with pytest.raises(grpc.RpcError) as caught:
            call(fed.ListMyTicketsRequest(), timeout=20)
        assert status(caught.value) == ("UNAUTHENTICATED", "NOT_AUTHENTICATED")
        with pytest.raises(grpc.RpcError) as caught:
            call(fed.ListMyTicketsRequest(), metadata=(("puf-client", "../../etc"),), timeout=20)
        assert status(caught.value) == ("INVALID_ARGUMENT", "USAGE_ERROR")


def test_join_names_both_fingerprints_when_they_differ(anna: Raw) -> None:
    with pytest.raises(grpc.RpcError, match="fingerprint") as caught:
        anna.join(manifest_fingerprint=bytes(32))
    assert status(caught.value) == ("FAILED_PRECONDITION", "MISMATCH")
    with pytest.raises(grpc.RpcError, match="recipe") as caught:
        anna.join(recipe_fingerprint=bytes(32))
    assert status(caught.value) == ("FAILED_PRECONDITION", "MISMATCH")


def test_the_newest_worker_replaces_the_older_one(server: Server, anna: Raw) -> None:
    anna.join()
    with Raw(server.port, "anna") as newer:
        newer.join(instance="another process")
        with pytest.raises(grpc.RpcError) as caught:
            anna.wait(0)
        assert status(caught.value) == ("FAILED_PRECONDITION", "SUPERSEDED")
        again = newer.join(instance="another process")
        assert again.session == newer.session
        with pytest.raises(grpc.RpcError) as caught:
            anna.join(instance="third", only_if_no_worker=True)
        assert status(caught.value) == ("FAILED_PRECONDITION", "WORKER_ALIVE")


def test_an_unknown_session_must_join_again(anna: Raw) -> None:
    anna.session = "99.unknown"
    with pytest.raises(grpc.RpcError) as caught:
        anna.wait(0)
    assert status(caught.value) == ("NOT_FOUND", "UNKNOWN_SESSION")


def test_work_is_declined_by_the_worker_that_has_it(server: Server, anna: Raw, bert: Raw) -> None:
    anna.join()
    bert.join()
    old, key = anna.session, work_of(anna).key
    anna.join(instance="another process")

    def decline(session: str) -> None:
        request = fed.DeclineWorkRequest(key=key, reason="out of memory", session=session)
        anna.stub.DeclineWork(request, **anna.options)

    for session, expected in (
        (old, ("FAILED_PRECONDITION", "SUPERSEDED")),
        ("99.x", ("NOT_FOUND", "UNKNOWN_SESSION")),
        # A session of another client and one of an older generation.
        (bert.session, ("FAILED_PRECONDITION", "SUPERSEDED")),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            decline(session)
        assert status(caught.value) == expected, session
    current = server.engine.state.round
    assert current is not None
    assert not current.declined
    decline(anna.session)
    current = server.engine.state.round
    assert current is not None
    assert current.declined == {"anna/main": "out of memory"}


def test_a_client_that_knows_no_session_in_this_call_still_declines(server: Server, anna: Raw, bert: Raw) -> None:
    anna.join()
    bert.join()
    request = fed.DeclineWorkRequest(key=work_of(anna).key, reason="out of memory")
    anna.stub.DeclineWork(request, **anna.options)
    current = server.engine.state.round
    assert current is not None
    assert current.declined == {"anna/main": "out of memory"}


def test_models_that_do_not_exist_or_are_not_served(anna: Raw) -> None:
    anna.join()
    with pytest.raises(grpc.RpcError) as caught:
        anna.fetch(42)
    assert status(caught.value) == ("NOT_FOUND", "NOT_FOUND")


def test_heartbeats_abandon_training_that_is_no_longer_wanted(anna: Raw, bert: Raw) -> None:
    anna.join()
    bert.join()
    work = work_of(anna)

    def abandon() -> bool:
        beat = fed.HeartbeatRequest(session=anna.session, training_id=work.training_id)
        return anna.stub.Heartbeat(beat, **anna.options).abandon_training

    assert abandon() is False
    anna.file()
    assert abandon() is True


def test_forgetting_over_the_wire(tmp_path: Path) -> None:
    """All steps of a request: what a target may do and may no longer do."""
    with running(make_state(tmp_path / "three", tiny_config(plan={"min_clients": 3}))) as server, ExitStack() as stack:
        everyone = [stack.enter_context(Raw(server.port, name)) for name in ("anna", "bert", "carl")]
        anna, bert, carl = everyone
        for client in everyone:
            client.join()
        for client in everyone * 2:
            client.submit(work_of(client))
        reply = carl.file(mode=tk.MODE_SPECIAL)
        assert carl.file().ticket.id == reply.ticket.id
        work = work_of(carl)
        assert (work.scale, work.ticket_id) == (-2.0, reply.ticket.id)
        with pytest.raises(grpc.RpcError) as caught:
            carl.submit(work, applied_scale=2.0)
        assert status(caught.value) == ("INVALID_ARGUMENT", "INVALID_UPDATE")
        carl.submit(work, update_bytes(-1.0))
        order = carl.wait()
        assert order.leave.reason == fed.LeaveOrder.REASON_FORGOTTEN
        for refused in (lambda: carl.join(), lambda: carl.join(rejoin=True), lambda: carl.submit(work)):
            with pytest.raises(grpc.RpcError) as caught:
                refused()
            assert status(caught.value) == ("PERMISSION_DENIED", "FORGOTTEN")
        follow = carl.stub.FollowTicket(fed.FollowTicketRequest(ticket_id=reply.ticket.id), **carl.options)
        for client in (anna, bert) * 5:
            client.submit(work_of(client))
        last = list(follow)[-1].ticket
        assert last.state == tk.TICKET_STATE_COMPLETED
        assert (last.version_before, last.version_unlearned) == (2, 3)
        assert len(carl.fetch(last.version_recovered)) == len(tiny_payload())
        with pytest.raises(grpc.RpcError) as caught:
            carl.fetch(last.version_before)
        assert status(caught.value) == ("NOT_FOUND", "NOT_FOUND")
        with pytest.raises(grpc.RpcError) as caught:
            anna.stub.WithdrawUnlearning(fed.WithdrawUnlearningRequest(ticket_id=reply.ticket.id), **anna.options)
        assert status(caught.value) == ("NOT_FOUND", "NOT_FOUND")
        with OperatorClient(f"127.0.0.1:{server.operator_port}") as control:
            control.readmit("carl")
        assert carl.join(rejoin=True).membership == 2


def test_the_operator_sees_and_controls_the_federation(server: Server, anna: Raw, bert: Raw, tmp_path: Path) -> None:
    with OperatorClient(f"127.0.0.1:{server.operator_port}") as control:
        assert "2 more clients" in control.status().waiting_for
        anna.join()
        bert.join()
        assert {c.name: c.alive for c in control.clients()} == {"anna": True, "bert": True}
        control.pause()
        assert control.status().position.phase == fed.PHASE_PAUSED
        assert anna.wait(0).WhichOneof("work") is None
        control.resume()
        for _ in range(2):
            for client in (anna, bert):
                client.submit(work_of(client))
        while control.status().position.phase != fed.PHASE_IDLE:
            anna.wait(0.05)
        assert [r.number for r in control.rounds()] == [2, 1]
        header = control.export(tmp_path / "model.safetensors")
        assert header.model.version == 2
        from safetensors.numpy import load_file

        assert set(load_file(tmp_path / "model.safetensors")) == {
            "layer.weight",
            "layer.bias",
            "norm.running_mean",
            "norm.steps",
        }
        assert control.extend(3) == 5
        assert work_of(anna).key.round == 3
        control.stop()
        assert anna.wait().leave.reason == fed.LeaveOrder.REASON_STOPPED


def test_health_and_reflection_are_there(server: Server) -> None:
    for port, service in ((server.port, "puf.v1.Federation"), (server.operator_port, "puf.v1.Operator")):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for name in ("", service):
                reply = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service=name), timeout=20
                )
                assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_operator_calls_are_not_served_to_clients(server: Server) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/puf.v1.Operator/Stop", None, None)(b"", timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_port_in_use_is_a_clear_error(server: Server, tmp_path: Path) -> None:
    import asyncio

    from puf_server.runtime.server import Addresses
    from puf_server.storage.state_store import Store

    async def second() -> None:
        store = Store.open(make_state(tmp_path / "other", tiny_config(title="other")))
        async with Server(store, Addresses(f"127.0.0.1:{server.port}", "127.0.0.1:0")):
            pass

    with pytest.raises(UsageError, match="in use"):
        asyncio.run(second())


def test_a_state_directory_has_one_server(server: Server) -> None:
    from puf_server.storage.state_store import Store

    with pytest.raises(UsageError, match="another server"):
        Store.open(server.engine.store.directory)


def test_the_operator_sees_the_transfer_rates_of_each_client(server: Server, anna: Raw, bert: Raw) -> None:
    anna.join()
    bert.join()
    work = work_of(anna)
    anna.fetch(work.base_version)
    anna.submit(work)
    rates = {name: server.handlers.rates.of(name) for name in ("anna", "bert")}
    assert rates["anna"].down > 0
    assert rates["anna"].up > 0
    assert rates["bert"] == TransferRate()
    assert server.handlers.rates.typical() == rates["anna"]
