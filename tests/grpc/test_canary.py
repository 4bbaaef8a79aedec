"""After COMPLETED the state directory contains no data that only the forgotten client had. Tests search every byte.

The data: a pattern in its updates, its token, its certificate, its device and the name of its process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.canary import found
from tests.grpc.raw import Raw, frames, update_bytes
from tests.pki import Pki
from tests.running import make_state, running, tiny_config
from tests.tickets import outcome

from puf_common.network.tls import read_certificates
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.processes import ServerProcess, wait_until
from puf_server.admission.tokens import Tokens
from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.runtime.server import Server
from puf_server.storage.state_store import Store

EVERYONE = ("anna", "bert", "cleo")
# An ordinary number with a bit pattern that occurs nowhere else.
PATTERN = struct.unpack("<f", b"\x13\x57\x9b\x3d")[0]
DEVICE, INSTANCE = "canary-device", "canary-instance"


def planted(client: Raw, payload: bytes) -> dict[str, bytes]:
    digest = hashlib.sha256(payload)
    return {
        "update": payload[:24],
        "digest of the update": digest.hexdigest().encode(),
        "session": client.session.encode(),
        "instance": INSTANCE.encode(),
        "device": DEVICE.encode(),
    }


def config() -> FederationConfig:
    return tiny_config(plan={"rounds": 1, "min_clients": 3}, forgetting={"blind_recovery_rounds": 1})


def forget(clients: dict[str, Raw], directory: Path) -> dict[str, bytes]:
    """Trains, forgets anna and recovers. Returns the canaries; each of them was in the directory before."""
    anna = clients["anna"]
    for name, client in clients.items():
        about: dict[str, Any] = {"device": DEVICE, "instance": INSTANCE} if name == "anna" else {}
        client.join(**about)
    payload = update_bytes(PATTERN)
    canaries = planted(anna, payload)
    anna.submit(anna.wait().train, payload)
    there = found(directory, canaries)
    assert set(there) == set(canaries), "a canary that is never there proves nothing"
    for name in ("bert", "cleo"):
        clients[name].submit(clients[name].wait().train)
    wait_until(lambda: anna.stub.Describe(fed.DescribeRequest(), **anna.options).position.round == 1, 20)
    anna.file()
    work = anna.wait().train
    flipped = update_bytes(PATTERN * work.scale)
    canaries["flipped update"] = flipped[:24]
    anna.submit(work, flipped)
    for _ in ("unlearn", "recover"):
        for name in ("bert", "cleo"):
            clients[name].submit(clients[name].wait().train)
    return canaries


@contextmanager
def connected(port: int) -> Iterator[dict[str, Raw]]:
    clients = {name: Raw(port, name) for name in EVERYONE}
    try:
        yield clients
    finally:
        for client in clients.values():
            client.channel.close()


def completed(server: Server) -> bool:
    tickets = server.engine.state.tickets.values()
    return bool(tickets) and all(t.state == "completed" for t in tickets)


def test_while_the_server_runs(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state", config())
    with running(directory) as server, connected(server.port) as clients:
        canaries = forget(clients, directory)
        wait_until(lambda: completed(server), 30)
        wait_until(lambda: not found(directory, canaries), 10)
        assert b"anna" in (directory / "state.db").read_bytes() + (directory / "state.db-wal").read_bytes()
    assert not found(directory, canaries)


def test_after_broken_resumed_and_cancelled_uploads(tmp_path: Path) -> None:
    """Each stream of the target ends early: parts of its updates are kept for a later stream, continued and replaced."""
    directory = make_state(tmp_path / "state", config())
    with running(directory) as server, connected(server.port) as clients:
        for client in clients.values():
            client.join()
        for client in clients.values():
            client.submit(client.wait().train)
        wait_until(lambda: server.engine.state.version == 1, 20)
        anna = clients["anna"]
        anna.file()
        work = anna.wait().train
        payload = update_bytes(PATTERN * work.scale)
        canaries = {"update": payload[:24], "digest": hashlib.sha256(payload).hexdigest().encode()}
        half = len(payload) // 2
        for _ in range(4):
            broken(anna, work, payload, half)
            kept = anna.stub.FindUpload(fed.FindUploadRequest(header=anna.header(work, payload)), **anna.options)
            assert kept.offset == half
            cancelled(anna, anna.header(work, payload, resume_at=half))
        assert set(found(directory, canaries)) == {"update"}, "a canary that is never there proves nothing"
        # The whole update comes in a stream of its own; the part that was kept belongs to no stream any more.
        anna.submit(work, payload)
        broken(anna, work, payload, half)
        for _ in ("unlearn", "recover"):
            for name in ("bert", "cleo"):
                clients[name].submit(clients[name].wait().train)
        wait_until(lambda: completed(server), 30)
        wait_until(lambda: not found(directory, canaries), 10)
        assert not server.handlers.uploads.quota.arriving
        assert not list((directory / "spool").iterdir())


def broken(client: Raw, work: fed.TrainWork, payload: bytes, nbytes: int) -> None:
    """Sends the first bytes of an update and ends the stream."""
    first = list(frames(client.header(work, payload), payload, nbytes))[:2]
    with pytest.raises(grpc.RpcError):
        client.stub.SubmitUpdate(iter(first), **client.options)


def cancelled(client: Raw, header: fed.UpdateHeader) -> None:
    """Sends a header and cancels the call at once."""
    over = threading.Event()

    def only_the_header() -> Iterator[fed.SubmitUpdateRequest]:
        yield fed.SubmitUpdateRequest(header=header)
        over.wait(30)

    call = client.stub.SubmitUpdate.future(only_the_header(), **client.options)
    call.cancel()  # type: ignore[no-untyped-call]
    over.set()
    # An answer on the same connection: the server has seen the cancellation before it.
    client.stub.Describe(fed.DescribeRequest(), **client.options)


@pytest.mark.e2e
def test_after_the_server_was_killed(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state", config())
    process = ServerProcess(directory, tmp_path / "server.log")
    with process:
        with connected(process.port) as clients:
            canaries = forget(clients, directory)
            wait_until(lambda: process.control.tickets()[0].state == tk.TICKET_STATE_COMPLETED, 30, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
        process.control.__exit__(None, None, None)
    # Killed between the commit and the purge: the next start purges.
    copy = shutil.copytree(directory, tmp_path / "copy")
    with running(copy):
        pass
    assert not found(copy, canaries)


def test_tokens_and_certificates(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    settings = tiny_config(
        plan={"rounds": 1, "min_clients": 3}, forgetting={"blind_recovery_rounds": 1, "grace_days": 0.0}
    )
    directory = make_state(tmp_path / "state", settings)
    tokens = {name: Tokens(directory).add(name, 1) for name in EVERYONE}
    with running(directory, pki.server_tls(mutual=False)) as server:
        clients = {name: Raw(server.port, name, pki.without_certificate()) for name in EVERYONE}
        for name, client in clients.items():
            client.options["metadata"] = (("authorization", f"Bearer {tokens[name]}"),)
        canaries = forget(clients, directory)
        wait_until(lambda: completed(server), 30)
        for client in clients.values():
            client.channel.close()
    canaries["token"] = tokens["anna"].encode()
    canaries["certificate"] = pki.authority.client("anna").certificate.read_bytes()
    assert not found(directory, canaries)
    # Its hash stays for as long as the client may fetch its receipt.
    hashed = {"hash": hashlib.sha256(tokens["anna"].encode()).hexdigest().encode()}
    with running(directory, pki.server_tls(mutual=False)):
        wait_until(lambda: not found(directory, hashed), 10)
    assert set(Tokens(directory).all()) == {"bert", "cleo"}


def test_client_certificates(tmp_path: Path) -> None:
    """With mutual TLS the certificate is the identity. Its serial number and the hash of its key are deleted, too."""
    pki = Pki(tmp_path / "pki")
    issued = {name: pki.authority.client(name) for name in EVERYONE}
    directory = make_state(tmp_path / "state", config())
    with running(directory, pki.server_tls()) as server:
        clients = {name: Raw(server.port, name, pki.shown(issued[name])) for name in EVERYONE}
        for client in clients.values():
            client.options["metadata"] = ()
        canaries = forget(clients, directory)
        wait_until(lambda: completed(server), 30)
        for client in clients.values():
            client.channel.close()
    (shown,) = read_certificates(issued["anna"].certificate)
    key = shown.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    pem = shown.public_bytes(Encoding.PEM).splitlines()
    canaries |= {
        "certificate": shown.public_bytes(Encoding.DER)[-64:],
        "certificate as text": pem[len(pem) // 2],
        "serial": f"{shown.serial_number:x}".encode(),
        "serial in decimal": str(shown.serial_number).encode(),
        "key": key[-32:],
        "hash of the key": hashlib.sha256(key).hexdigest().encode(),
        "hash of the certificate": shown.fingerprint(SHA256()).hex().encode(),
    }
    assert not found(directory, canaries)


def test_the_token_stays_for_the_grace_time(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state", config())
    with running(directory) as server, connected(server.port) as clients:
        forget(clients, directory)
        wait_until(lambda: completed(server), 30)
    store = Store.open(directory)
    state, (ticket,) = store.load(), store.load().tickets.values()
    store.close()
    days = store.config.forgetting.grace_days * 86400
    assert roster.past_grace(state, store.config, outcome(ticket).completed_at + days - 1) == []
    assert roster.past_grace(state, store.config, outcome(ticket).completed_at + days + 1) == ["anna"]
