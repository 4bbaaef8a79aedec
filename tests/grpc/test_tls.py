"""Admission over TLS: every method of both services, all four kinds of calls, at their start and while they last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.grpc.raw import Raw, frames, status, update_bytes
from tests.pki import Pki
from tests.running import make_state, metadata, running, tiny_config

from puf_client.transport.dial import TokenFile
from puf_client.transport.grpc import GrpcTransport
from puf_client.transport.retry import RetryPolicy
from puf_common.errors import NotAuthenticated, UsageError
from puf_common.files.private import write_over
from puf_common.network.tls import ClientTls, ServerTls
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import operator_pb2 as op
from puf_server.admission.revocations import Revocations
from puf_server.admission.tokens import Tokens
from puf_server.cli.main import main
from puf_server.cli.operator_client import OperatorClient
from puf_server.runtime.server import Server

FEDERATION = list(fed.DESCRIPTOR.services_by_name["Federation"].methods)
OPERATOR = list(op.DESCRIPTOR.services_by_name["Operator"].methods)


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "state", tiny_config(plan={"min_clients": 1}))


@pytest.fixture
def server(state: Path, pki: Pki) -> Iterator[Server]:
    with running(state, pki.server_tls()) as server:
        yield server


@pytest.fixture
def token_server(state: Path, pki: Pki) -> Iterator[Server]:
    with running(state, pki.server_tls(mutual=False)) as server:
        yield server


@contextmanager
def channel(port: int, tls: ClientTls | None) -> Iterator[grpc.Channel]:
    target = f"127.0.0.1:{port}"
    with tls.channel(target, []) if tls else grpc.insecure_channel(target) as channel:
        yield channel


def call(channel: grpc.Channel, method: MethodDescriptor, request: Any = None, sent: Any = ()) -> Any:
    """The answer of a method of any kind, or the first of its answers."""
    kinds: dict[tuple[bool, bool], Any] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    message = GetMessageClass(method.input_type)() if request is None else request
    stub = kinds[method.client_streaming, method.server_streaming](
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=lambda m: m.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    reply: Any = stub(iter([message]) if method.client_streaming else message, timeout=20, metadata=sent)
    return next(iter(reply)) if method.server_streaming else reply


def code_of(channel: grpc.Channel, method: MethodDescriptor, request: Any = None, sent: Any = ()) -> str:
    try:
        call(channel, method, request, sent)
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def codes(port: int, tls: ClientTls | None, methods: list[MethodDescriptor], sent: Any = ()) -> dict[str, str]:
    with channel(port, tls) as opened:
        return {method.name: code_of(opened, method, sent=sent) for method in methods}


def unknown_method(channel: Any) -> object:
    return channel.unary_unary("/puf.v1.Federation/NoSuchMethod")(b"", timeout=20)


def everywhere(methods: list[MethodDescriptor], code: str) -> dict[str, str]:
    return {method.name: code for method in methods}


# -- refused callers ---------------------------------------------------------------------------------------------------


def test_the_contract_has_all_kinds_of_calls() -> None:
    kinds = {(m.client_streaming, m.server_streaming) for m in FEDERATION + OPERATOR}
    assert {(False, False), (False, True), (True, False)} <= kinds


def test_without_a_certificate_of_the_authority_no_call_arrives(server: Server, pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path / "other")
    late = pki.authority.client("late")
    shown = pki.shown(late)
    pki.expire(late.certificate)
    expired = ClientTls(shown.roots, late.certificate.read_bytes(), shown.key)
    assert pki.server.key is not None
    of_the_server = ClientTls(shown.roots, pki.server.certificate.read_bytes(), pki.server.key.read_bytes())
    impostor = other.client("anna", ca=pki.ca)
    for tls in (None, pki.without_certificate(), impostor, expired, of_the_server):
        claim = metadata("anna")
        assert codes(server.port, tls, FEDERATION, claim) == everywhere(FEDERATION, "UNAVAILABLE")
        assert codes(server.operator_port, tls, OPERATOR, claim) == everywhere(OPERATOR, "UNAVAILABLE")
    assert not server.engine.state.members
    assert not server.engine.state.paused


def test_an_operator_is_not_a_client_and_a_client_is_not_an_operator(server: Server, pki: Pki) -> None:
    anna, ada = pki.client("anna"), pki.operator()
    claim = metadata("anna")
    assert codes(server.port, ada, FEDERATION, claim) == everywhere(FEDERATION, "UNAUTHENTICATED")
    assert codes(server.operator_port, anna, OPERATOR, claim) == everywhere(OPERATOR, "UNAUTHENTICATED")
    # A certificate of a company identifies a client by its common name, never an operator.
    known = pki.foreign("ada")
    assert codes(server.operator_port, known, OPERATOR, claim) == everywhere(OPERATOR, "UNAUTHENTICATED")
    assert not server.engine.state.paused
    with OperatorClient(f"127.0.0.1:{server.operator_port}", ada) as control:
        assert control.status().federation_id == "f-test"


@pytest.mark.parametrize(
    "sent",
    [
        (),
        metadata("anna"),
        (("authorization", "Bearer wrong"),),
        (("authorization", ""),),
        (("authorization", "Basic YW5uYTphbm5h"),),
        (("authorization", f"Bearer {'x' * 5000}"),),
        (("authorization", "Bearer x"), ("authorization", "Bearer y")),
    ],
)
def test_without_a_token_no_method_answers(token_server: Server, pki: Pki, sent: Any) -> None:
    Tokens(token_server.engine.store.directory).add("anna", 1)
    found = codes(token_server.port, pki.without_certificate(), FEDERATION, sent)
    assert found == everywhere(FEDERATION, "UNAUTHENTICATED")
    # The operator's listener requires a certificate in addition.
    found = codes(token_server.operator_port, pki.without_certificate(), OPERATOR, sent)
    assert found == everywhere(OPERATOR, "UNAVAILABLE")


def test_other_services_require_credentials_too(token_server: Server, pki: Pki) -> None:
    with channel(token_server.port, pki.without_certificate()) as opened:
        health = health_pb2_grpc.HealthStub(opened)
        # Health checks work without credentials.
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=20).status == 1
        reflection = reflection_pb2_grpc.ServerReflectionStub(opened)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        attempts: list[Callable[[], object]] = [
            lambda: next(iter(health.Watch(health_pb2.HealthCheckRequest(), timeout=20))),
            lambda: next(iter(reflection.ServerReflectionInfo(iter([ask]), timeout=20))),
            lambda: unknown_method(opened),
        ]
        for attempt in attempts:
            with pytest.raises(grpc.RpcError) as caught:
                attempt()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_admitted_callers_reach_every_service(server: Server, pki: Pki) -> None:
    with channel(server.port, pki.client("anna")) as opened:
        reflection = reflection_pb2_grpc.ServerReflectionStub(opened)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        listed = next(iter(reflection.ServerReflectionInfo(iter([ask]), timeout=20)))
        assert "puf.v1.Federation" in {s.name for s in listed.list_services_response.service}
        health = health_pb2_grpc.HealthStub(opened)
        assert next(iter(health.Watch(health_pb2.HealthCheckRequest(), timeout=20))).status == 1
        with pytest.raises(grpc.RpcError) as caught:
            unknown_method(opened)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_without_tls_a_caller_without_a_name_is_refused(state: Path) -> None:
    with running(state) as server:
        assert codes(server.port, None, FEDERATION) == everywhere(FEDERATION, "UNAUTHENTICATED")


# -- identity ---------------------------------------------------------------------------------------------------------


def test_the_certificate_is_the_identity_and_metadata_is_ignored(server: Server, pki: Pki) -> None:
    with Raw(server.port, "anna", pki.client("bert")) as client:
        # The metadata claims anna.
        client.join()
    assert set(server.engine.state.members) == {"bert"}
    with Raw(server.port, "x", pki.foreign("hospital.example.org")) as client:
        client.join()
    assert set(server.engine.state.members) == {"bert", "hospital.example.org"}


def test_no_client_acts_for_another(server: Server, pki: Pki) -> None:
    """Another member calls every method that names a ticket, a session or work of the first one."""
    with ExitStack() as stack:
        anna = stack.enter_context(Raw(server.port, "anna", pki.client("anna")))
        eve = stack.enter_context(Raw(server.port, "anna", pki.client("eve")))
        anna.join()
        eve.join()
        work = anna.wait().train
        with OperatorClient(f"127.0.0.1:{server.operator_port}", pki.operator()) as control:
            control.pause()
        ticket = anna.file().ticket.id
        before = (server.engine.state.tickets, server.engine.state.round, server.engine.state.members)
        tried = set()
        for method in FEDERATION:
            message: Any = GetMessageClass(method.input_type)()
            if "ticket_id" in message.DESCRIPTOR.fields_by_name:
                message.ticket_id = ticket
            elif "session" in message.DESCRIPTOR.fields_by_name:
                message.session = anna.session
            else:
                continue
            if "forget" in message.DESCRIPTOR.fields_by_name:
                message.forget.samples = 1
            if "key" in message.DESCRIPTOR.fields_by_name:
                message.key.CopyFrom(work.key)
            tried.add(method.name)
            code = code_of(eve.channel, method, message, metadata("anna"))
            # Leaving twice is no error. It must not end the other client's session, see below.
            assert code in ({"OK"} if method.name == "Leave" else {"NOT_FOUND", "PERMISSION_DENIED"}), method.name
        assert tried >= {"Heartbeat", "WaitForWork", "Leave", "FollowTicket", "WithdrawUnlearning", "ReportMeasurement"}
        assert "DeclineWork" in tried
        payload = update_bytes()
        with pytest.raises(grpc.RpcError):
            eve.send(anna.header(work, payload), payload)
        assert eve.stub.ListMyTickets(fed.ListMyTicketsRequest(), **eve.options).tickets == []
        assert (server.engine.state.tickets, server.engine.state.round, server.engine.state.members) == before
        assert server.engine.state.members["anna"].session == anna.session


def test_a_renewed_certificate_is_the_same_member(state: Path, pki: Pki) -> None:
    first = pki.authority.client("anna")
    with running(state, pki.server_tls()) as server:
        with Raw(server.port, "anna", pki.shown(first)) as client:
            joined = client.join()
        old = first.serial
        renewed = pki.authority.client("anna", renew=True)
        assert renewed.serial != old
        # The lost key has a certificate with its own serial number: revoking it affects no other certificate.
        Revocations(state).revoke(serial=old)
        with Raw(server.port, "anna", pki.shown(renewed)) as client:
            assert client.join().membership == joined.membership
        assert set(server.engine.state.members) == {"anna"}


def test_the_servers_certificate_is_renewed_without_a_restart(state: Path, pki: Pki) -> None:
    anna = pki.authority.client("anna")
    with running(state, pki.server_tls()) as server:
        dialled = pki.shown(anna, server_name="new.example.org")
        with Raw(server.port, "anna", dialled) as client, pytest.raises(grpc.RpcError, match="Hostname Verification"):
            client.join()
        pki.authority.server(["new.example.org", "localhost"], renew=True)
        with Raw(server.port, "anna", dialled) as client:
            client.join()
        # Partly written files change nothing. Commands on this machine use the new certificate.
        with OperatorClient.of_state(state) as control:
            assert control.status().clients_active == 1
        pki.server.certificate.write_text("damaged")
        with Raw(server.port, "anna", dialled) as client:
            client.join()


# -- revoked callers ---------------------------------------------------------------------------------------------------


def eventually_refused(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises(grpc.RpcError, match=says) as caught:
        attempt()
    assert status(caught.value) == ("UNAUTHENTICATED", "NOT_AUTHENTICATED")


def test_waiting_ends_when_the_client_is_revoked(server: Server, pki: Pki, state: Path) -> None:
    with Raw(server.port, "anna", pki.client("anna")) as anna, Raw(server.port, "bert", pki.client("bert")) as bert:
        with OperatorClient.of_state(state) as control:
            control.pause()
        for client in (anna, bert):
            client.join()
        asked = fed.WaitForWorkRequest(session=anna.session, timeout_seconds=50)
        waiting = anna.stub.WaitForWork.future(asked, metadata=(), timeout=60)
        asked = fed.WaitForWorkRequest(session=bert.session, timeout_seconds=3)
        other = bert.stub.WaitForWork.future(asked, metadata=(), timeout=60)
        assert main(["certs", "revoke", "anna", "--state", str(state)]) == 0
        eventually_refused(waiting.result, "anna was revoked")
        eventually_refused(lambda: anna.stub.Describe(fed.DescribeRequest(), timeout=20), "anna was revoked")
        # Other clients are not affected, and a revocation can be removed.
        assert other.result().WhichOneof("work") is None
        assert main(["certs", "restore", "anna", "--state", str(state)]) == 0
        anna.join()


def test_following_a_ticket_ends_when_the_client_is_revoked(server: Server, pki: Pki, state: Path) -> None:
    with Raw(server.port, "anna", pki.client("anna")) as anna, Raw(server.port, "bert", pki.client("bert")) as bert:
        with OperatorClient.of_state(state) as control:
            control.pause()
        anna.join()
        bert.join()
        ticket = anna.file().ticket
        stream = anna.stub.FollowTicket(fed.FollowTicketRequest(ticket_id=ticket.id), timeout=60)
        assert next(iter(stream)).ticket.id == ticket.id
        Revocations(state).revoke(name="anna")
        eventually_refused(lambda: list(stream), "anna was revoked")
        assert server.engine.state.tickets[ticket.id].open


def test_an_upload_ends_when_the_client_is_revoked(server: Server, pki: Pki, state: Path) -> None:
    with Raw(server.port, "anna", pki.client("anna")) as anna:
        anna.join()
        work, payload = anna.wait().train, update_bytes()
        hold = threading.Event()

        def slowly() -> Iterator[fed.SubmitUpdateRequest]:
            sent = list(frames(anna.header(work, payload), payload))
            yield from sent[:2]
            Revocations(state).revoke(name="anna")
            hold.wait(30)
            yield from sent[2:]

        try:
            eventually_refused(lambda: anna.stub.SubmitUpdate(slowly(), timeout=60), "anna was revoked")
        finally:
            hold.set()
        current = server.engine.state.round
        assert current is not None
        assert not current.received
    assert not list((state / "spool").iterdir())


def test_a_download_ends_when_the_client_is_revoked(tmp_path: Path, pki: Pki) -> None:
    large = Manifest((TensorSpec("weight", "f32", (16 << 20,)),))
    payload = bytearray(large.nbytes(MODEL))
    state = make_state(tmp_path / "large", tiny_config(plan={"min_clients": 1}), large, payload)
    with running(state, pki.server_tls()) as server, Raw(server.port, "anna", pki.client("anna")) as anna:
        anna.join()
        stream = anna.stub.FetchModel(fed.FetchModelRequest(version=0), timeout=60)
        assert next(iter(stream)).header.byte_length == len(payload)
        Revocations(state).revoke(name="anna")
        # The server waits for a client that does not read. Bytes that it has sent may still arrive.
        threading.Event().wait(1.0)
        received = 0

        def rest() -> None:
            nonlocal received
            for frame in stream:
                received += len(frame.chunk.data)

        eventually_refused(rest, "anna was revoked")
        assert received < len(payload)


def test_an_operators_certificate_can_be_revoked(server: Server, pki: Pki, state: Path) -> None:
    ada = pki.authority.operator("ada")
    with OperatorClient(f"127.0.0.1:{server.operator_port}", pki.shown(ada)) as control:
        control.status()
        # Revoking a client's name does not revoke an operator of the same name.
        Revocations(state).revoke(name="ada")
        control.status()
        Revocations(state).revoke(serial=ada.serial)
        with pytest.raises(NotAuthenticated, match="revoked"):
            control.status()


def test_tokens_are_valid_until_they_are_replaced_or_revoked(token_server: Server, pki: Pki, tmp_path: Path) -> None:
    state = token_server.engine.store.directory
    tokens, file = Tokens(state), tmp_path / "anna.token"
    write_over(file, tokens.add("anna", 1).encode())
    target = f"127.0.0.1:{token_server.port}"
    with GrpcTransport(
        target, "anna", tls=pki.without_certificate(), token=TokenFile(file), retry=RetryPolicy(5)
    ) as anna:
        assert anna.describe().federation_id == "f-test"
        fresh = tokens.add("anna", 1, replace=True)
        with pytest.raises(NotAuthenticated, match="token is unknown"):
            anna.describe()
        write_over(file, fresh.encode())
        assert not anna.list_my_tickets().tickets
        # A revoked name is refused with any credential.
        Revocations(state).revoke(name="anna")
        with pytest.raises(NotAuthenticated, match="anna was revoked"):
            anna.describe()
        Revocations(state).restore(name="anna")
        anna.describe()
        waiting = _waiting(anna)
        tokens.revoke("anna")
        waiting.join(20)
        assert not waiting.is_alive()
        with pytest.raises(NotAuthenticated, match="token is unknown"):
            anna.describe()


def _waiting(transport: GrpcTransport) -> threading.Thread:
    """A worker of a paused federation that waits in a thread until it is refused."""
    about = transport.describe()
    session = transport.join(
        fed.JoinRequest(
            instance="i",
            samples=0,
            manifest_fingerprint=about.manifest.fingerprint,
            recipe_fingerprint=about.recipe.fingerprint,
        )
    ).session

    def wait() -> None:
        with pytest.raises(NotAuthenticated, match="token is unknown"):
            transport.wait_for_work(fed.WaitForWorkRequest(session=session, timeout_seconds=50))

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


# -- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["wrong authority", "wrong name", "no certificate", "another's authority", "no TLS"])
def test_clients_get_a_message_of_one_line(server: Server, pki: Pki, tmp_path: Path, case: str) -> None:
    other = Pki(tmp_path / "other")
    tls, says = {
        "wrong authority": (pki.client("anna", ca=other.ca), "was not signed by the authority in --tls-ca"),
        "wrong name": (pki.client("bert", server_name="fed.example.org"), "--tls-server-name"),
        "no certificate": (pki.without_certificate(), "--tls-cert and --tls-key"),
        "another's authority": (other.client("anna", ca=pki.ca), "a certificate of its authority"),
        "no TLS": (None, "see --tls-ca"),
    }[case]
    with GrpcTransport(f"127.0.0.1:{server.port}", "anna", tls=tls, retry=RetryPolicy(20)) as transport:
        with pytest.raises(NotAuthenticated, match=says) as caught:
            transport.describe()
        assert "\n" not in caught.value.message


def test_an_expired_server_certificate_is_reported(state: Path, pki: Pki) -> None:
    shown = pki.client("anna")
    with running(state, pki.server_tls()) as server:
        pki.expire(pki.server.certificate)
        # A server does not load files that are worse than the ones it has.
        with GrpcTransport(f"127.0.0.1:{server.port}", "anna", tls=shown, retry=RetryPolicy(5)) as transport:
            transport.describe()
    with pytest.raises(UsageError, match="expired on"), running(state, pki.server_tls()):
        pass
    assert pki.server.key is not None
    late = grpc.server(ThreadPoolExecutor(1))
    pair = (pki.server.key.read_bytes(), pki.server.certificate.read_bytes())
    port = late.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    late.start()
    try:
        transport = GrpcTransport(f"127.0.0.1:{port}", "anna", tls=shown, retry=RetryPolicy(20))
        with transport, pytest.raises(NotAuthenticated, match=r"expired.*--renew"):
            transport.describe()
    finally:
        late.stop(None)


def test_commands_on_the_servers_machine_need_only_its_state_directory(
    server: Server, state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pki: Pki
) -> None:
    monkeypatch.delenv("PUF_STATE", raising=False)
    file = state / "operator.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert main(["status", "--state", str(state), "--json"]) == 0
    assert "f-test" in capsys.readouterr().out
    monkeypatch.setenv("PUF_STATE", str(state))
    assert main(["pause"]) == 0
    assert server.engine.state.paused
    monkeypatch.delenv("PUF_STATE")
    operator = ["--operator", f"127.0.0.1:{server.operator_port}"]
    assert main(["resume", *operator]) == 4
    assert "--state DIR" in capsys.readouterr().err
    ada = pki.authority.operator("ada")
    shown = ["--tls-ca", str(pki.ca), "--tls-cert", str(ada.certificate), "--tls-key", str(ada.key)]
    assert main(["resume", *operator, *shown]) == 0
    assert not server.engine.state.paused
    bert = pki.authority.client("bert")
    shown = ["--tls-ca", str(pki.ca), "--tls-cert", str(bert.certificate), "--tls-key", str(bert.key)]
    assert main(["pause", *operator, *shown]) == 4
    assert "the certificate of bert is for a client" in capsys.readouterr().err
    assert not server.engine.state.paused


def test_the_operator_access_file_is_deleted_when_the_server_ends(state: Path, pki: Pki) -> None:
    with running(state, pki.server_tls()) as server:
        kept = (state / "operator.json").read_bytes()
        assert server.operator_port
    assert not (state / "operator.json").exists()
    with pytest.raises(UsageError, match="no server serves"):
        OperatorClient.of_state(state)
    with running(state, pki.server_tls()) as server:
        # An access file of a former process gives no access.
        (state / "operator.json").write_bytes(kept)
        control = OperatorClient.of_state(state, f"127.0.0.1:{server.operator_port}")
        with control, pytest.raises(NotAuthenticated, match="handshake"):
            control.status()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "--insecure"),
        (["--tls-cert", "a"], "--tls-key"),
        (["--client-ca", "a"], "--tls-cert"),
        (["--insecure", "--tls-cert", "a", "--tls-key", "b"], "exclude each other"),
        (["--tls-cert", "gone.crt", "--tls-key", "gone.key"], "cannot read gone"),
    ],
)
def test_serving_needs_tls_or_insecure(
    state: Path, flags: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PUF_INSECURE", raising=False)
    assert main(["serve", "--state", str(state), *flags]) == 2
    assert says in capsys.readouterr().err


def test_server_files_can_be_issued_by_any_authority(state: Path, pki: Pki, tmp_path: Path) -> None:
    """The clients' authority and the server's can differ."""
    public = Pki(tmp_path / "public")
    assert public.server.key is not None
    tls = ServerTls(public.server.certificate, public.server.key, pki.ca)
    with running(state, tls) as server, Raw(server.port, "", pki.client("anna", ca=public.ca)) as anna:
        anna.join()
        assert set(server.engine.state.members) == {"anna"}
