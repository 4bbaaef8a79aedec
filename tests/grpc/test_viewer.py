"""A viewer reads everything that the operator port shows and changes nothing, over real gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from tests.grpc.raw import Raw, status
from tests.grpc.test_tls import OPERATOR, call, channel, codes
from tests.pki import Pki
from tests.running import make_state, running, tiny_config

from puf_common.network.tls import ClientTls
from puf_common.v1 import operator_pb2 as op
from puf_server.admission.access_file import OperatorAccess
from puf_server.admission.roles import READS
from puf_server.runtime.server import Server
from puf_server.storage.database import audit_head, reading

ASKS = (("puf-role", "viewer"),)
READ_CALLS = {name.rpartition("/")[2] for name in READS}
CHANGES = [method for method in OPERATOR if method.name not in READ_CALLS]


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "state", tiny_config(plan={"min_clients": 1, "rounds": 1}))


@pytest.fixture
def server(state: Path, pki: Pki) -> Iterator[Server]:
    with running(state, pki.server_tls()) as server:
        yield server


def changing_requests() -> list[Any]:
    """Requests that would change something if an operator sent them."""
    known: dict[str, Any] = {
        "Extend": op.ExtendRequest(rounds=3),
        "Forget": op.ForgetRequest(client="anna"),
        "Allow": op.AllowRequest(client="anna"),
        "ReleaseShard": op.ReleaseShardRequest(client="anna"),
        "Readmit": op.ReadmitRequest(client="anna"),
        "ExportModel": op.ExportModelRequest(allow_unready=True),
    }
    return [(method, known.get(method.name, GetMessageClass(method.input_type)())) for method in CHANGES]


def refused(port: int, tls: ClientTls | None, sent: Any = ()) -> dict[str, str]:
    found = {}
    with channel(port, tls) as opened:
        for method, request in changing_requests():
            with pytest.raises(grpc.RpcError) as error:
                call(opened, method, request, sent)
            found[method.name] = error.value.code().name
    return found


def audited(server: Server) -> int:
    with reading(server.engine.store.layout.database) as db:
        return audit_head(db).number


def test_every_call_that_changes_something_is_named_here() -> None:
    assert {m.name for m in CHANGES} == {
        "Pause", "Resume", "Extend", "Stop", "ExportModel", "Readmit", "ReleaseShard", "Forget", "Allow", "Release",
        "Rollback",
    }  # fmt: skip


def test_a_viewers_certificate_cannot_pause_forget_approve_export_or_stop(server: Server, pki: Pki) -> None:
    with Raw(server.port, "anna", pki.client("anna")) as anna:
        anna.join()
        before, entries = server.engine.state, audited(server)
        assert set(refused(server.operator_port, pki.viewer()).values()) == {"PERMISSION_DENIED"}
        assert server.engine.state is before
        assert audited(server) == entries
        assert not server.stopped.is_set()


def test_a_viewers_certificate_reads_everything(server: Server, pki: Pki) -> None:
    reads = [m for m in OPERATOR if m.name in READ_CALLS]
    found = codes(server.operator_port, pki.viewer(), reads)
    assert found.pop("IssueReceipt") == "NOT_FOUND"
    assert set(found.values()) == {"OK"}


def test_a_viewer_is_no_client(server: Server, pki: Pki) -> None:
    with Raw(server.port, "wall", pki.viewer()) as wall, pytest.raises(grpc.RpcError) as error:
        wall.join()
    assert status(error.value)[0] == "UNAUTHENTICATED"


def test_the_access_file_of_the_viewer_only_reads(server: Server, state: Path) -> None:
    access = OperatorAccess.read(state, "viewer")
    assert (state / "viewer.json").stat().st_mode & 0o777 == 0o600
    assert set(refused(server.operator_port, access.tls()).values()) == {"PERMISSION_DENIED"}
    with channel(server.operator_port, access.tls()) as opened:
        status_of = next(m for m in OPERATOR if m.name == "Status")
        assert call(opened, status_of).federation_id == "f-test"


def test_an_operator_can_give_up_its_rights(server: Server, pki: Pki) -> None:
    assert set(refused(server.operator_port, pki.operator(), ASKS).values()) == {"PERMISSION_DENIED"}


def test_without_tls_a_caller_can_give_up_its_rights(state: Path) -> None:
    with running(state) as server:
        assert set(refused(server.operator_port, None, ASKS).values()) == {"PERMISSION_DENIED"}
        assert not server.engine.state.paused
        with channel(server.operator_port, None) as opened:
            call(opened, next(m for m in CHANGES if m.name == "Pause"))
        assert server.engine.state.paused
