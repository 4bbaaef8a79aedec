"""Broken uploads and downloads continue where they stopped. Unwanted uploads are deleted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
from tests.grpc.raw import Raw, frames, status
from tests.running import make_state, running, tiny_config

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.settings import Offer
from puf_client.transport.grpc import GrpcTransport
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as fed
from puf_server.runtime.server import Server

SIZE = 2_000_000
BIG = Manifest((TensorSpec("w", "f32", (SIZE,)),))
UPDATE_BYTES = np.linspace(-1, 1, SIZE).astype("<f4").tobytes()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    payload = bytearray(BIG.nbytes(MODEL))
    with running(make_state(tmp_path / "state", tiny_config(plan={"rounds": 1}), BIG, payload)) as server:
        yield server


def spool(server: Server) -> list[Path]:
    return list((server.engine.store.directory / "spool").iterdir())


class Cutting:
    """A relay that closes the first connection after some bytes from the client, or to it, and forwards later ones."""

    def __init__(self, port: int, after: int, *, down: bool = False) -> None:
        self._port = port
        self._left = after
        self._down = down
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._port))
            threading.Thread(target=self._relay, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._relay, args=(server, client, False), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
                if up is not self._down and self._left > 0:
                    self._left -= len(data)
                    if self._left <= 0:
                        break
        except OSError:
            pass
        for end in (source, sink):
            hang_up(end)


def hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def broken(server: Server, client: Raw, work: fed.TrainWork) -> fed.UpdateHeader:
    """An upload of which about half arrives. Returns when the server has kept it."""
    header = client.header(work, UPDATE_BYTES, manifest_fingerprint=BIG.fingerprint)
    arrived = threading.Event()

    def half() -> Iterator[fed.SubmitUpdateRequest]:
        for number, frame in enumerate(frames(header, UPDATE_BYTES, 1 << 20)):
            if number == 4:
                arrived.wait(20)
                return
            yield frame

    call = client.stub.SubmitUpdate.future(half(), **client.options)
    while server.handlers.rates.bytes_received < 3 << 20:
        assert not call.done()
        arrived.wait(0.01)
    call.cancel()  # type: ignore[no-untyped-call]
    while not client.stub.FindUpload(fed.FindUploadRequest(header=header), **client.options).offset:
        arrived.wait(0.01)
    arrived.set()
    return header


def test_a_stream_that_ends_early_is_kept_like_one_that_broke(server: Server) -> None:
    anna, work = joined(server)
    header = anna.header(work, UPDATE_BYTES, manifest_fingerprint=BIG.fingerprint)
    half = list(frames(header, UPDATE_BYTES, 1 << 20))[:4]
    with pytest.raises(grpc.RpcError, match="the stream ended after") as caught:
        anna.stub.SubmitUpdate(iter(half), **anna.options)
    assert status(caught.value)[0] == "DATA_LOSS"
    assert anna.stub.FindUpload(fed.FindUploadRequest(header=header), **anna.options).offset == 3 << 20


def test_an_upload_with_a_refused_chunk_is_not_kept_when_its_connection_breaks(server: Server) -> None:
    anna, work = joined(server)
    bad = bytearray(UPDATE_BYTES)
    np.frombuffer(bad, "<f4")[600_000] = np.nan
    header = anna.header(work, bytes(bad), manifest_fingerprint=BIG.fingerprint)
    over = threading.Event()

    def until_the_bad_chunk() -> Iterator[fed.SubmitUpdateRequest]:
        yield from list(frames(header, bytes(bad), 1 << 20))[:4]
        over.wait(20)

    call = anna.stub.SubmitUpdate.future(until_the_bad_chunk(), **anna.options)
    while server.handlers.rates.bytes_received < 3 << 20:
        assert not call.done()
        over.wait(0.01)
    # The question ends the stream. The server decides what to keep of it.
    assert anna.stub.FindUpload(fed.FindUploadRequest(header=header), **anna.options).offset == 0
    assert spool(server) == []
    over.set()


def joined(server: Server) -> tuple[Raw, fed.TrainWork]:
    clients = [Raw(server.port, name) for name in ("anna", "bert")]
    for client in clients:
        client.join()
    return clients[0], clients[0].wait().train


def test_a_client_continues_where_its_connection_broke(server: Server) -> None:
    relay = Cutting(server.port, 5_000_000)
    first = GrpcTransport(relay.target, "anna")
    second = connect(f"127.0.0.1:{server.port}", Offer(samples=1), name="bert")
    with connect(first, Offer(samples=1)) as anna, second as bert:
        for session in (anna, bert):
            work = session.step(20)
            assert isinstance(work, Assignment)
            assert work.submit(UPDATE_BYTES)
        while server.engine.state.number < 1:
            bert.step(0.05)
        state = server.engine.state
        model = server.engine.store.models.payload(state.models[1])
    first.close()
    assert np.array_equal(np.frombuffer(model, "<f4"), np.frombuffer(UPDATE_BYTES, "<f4"))
    assert len(UPDATE_BYTES) < first.bytes_sent < 2 * len(UPDATE_BYTES)
    assert server.handlers.rates.bytes_received <= 2 * len(UPDATE_BYTES) + (4 << 20)
    assert state.records[1].nbytes_up == 2 * BIG.nbytes(UPDATE)


def test_only_the_rest_completes_the_upload(server: Server) -> None:
    anna, work = joined(server)
    header = broken(server, anna, work)
    offset = anna.stub.FindUpload(fed.FindUploadRequest(header=header), **anna.options).offset
    other = anna.header(work, bytes(len(UPDATE_BYTES)))
    assert anna.stub.FindUpload(fed.FindUploadRequest(header=other), **anna.options).offset == 0
    bert = Raw(server.port, "bert")
    assert bert.stub.FindUpload(fed.FindUploadRequest(header=header), **bert.options).offset == 0
    header.resume_at = offset
    whole = list(frames(header, UPDATE_BYTES, 1 << 20))
    rest = [whole[0], *(f for f in whole[1:] if f.chunk.offset >= offset)]
    assert anna.stub.SubmitUpdate(iter(rest), **anna.options).duplicate is False
    with pytest.raises(grpc.RpcError, match="from the beginning") as caught:
        anna.stub.SubmitUpdate(iter(rest), **anna.options)
    assert status(caught.value)[0] == "DATA_LOSS"


def test_a_request_to_be_forgotten_deletes_what_had_arrived(server: Server) -> None:
    anna, work = joined(server)
    header = broken(server, anna, work)
    assert len(spool(server)) == 1
    anna.file()
    assert spool(server) == []
    assert anna.stub.FindUpload(fed.FindUploadRequest(header=header), **anna.options).offset == 0


def test_a_counted_update_is_acknowledged_before_its_chunks_are_sent(server: Server) -> None:
    """The server answers by the header alone. The client's stream of many chunks must still end with the OK."""
    anna, work = joined(server)
    # The work of both differs in the caller alone.
    header = anna.header(work, UPDATE_BYTES, manifest_fingerprint=BIG.fingerprint)
    for client in (anna, Raw(server.port, "bert")):
        assert not client.send(header, UPDATE_BYTES, 1 << 18).duplicate
    while server.engine.state.number < 1:
        anna.wait(0.1)
    for _ in range(5):
        reply = anna.send(header, UPDATE_BYTES, 1 << 18)
        assert (reply.duplicate, reply.position.round) == (True, 1)
    assert spool(server) == []


def test_a_download_that_breaks_continues_where_it_stopped(server: Server) -> None:
    nbytes = BIG.nbytes(MODEL)
    with connect(f"127.0.0.1:{server.port}", Offer(samples=1), name="anna"):
        relay = Cutting(server.port, nbytes * 2 // 3, down=True)
        with GrpcTransport(relay.target, "anna") as transport:
            transport.describe()
            _, payload = transport.fetch_model(0)
            assert payload == bytes(nbytes)
            # Chunks that were under way when the connection broke travel again; those that arrived do not.
            assert nbytes <= transport.bytes_received < nbytes + (4 << 20)
        asked = fed.FetchModelRequest(version=0, resume_at=5 << 20)
        with Raw(server.port, "anna") as raw:
            digest = bytes.fromhex(server.engine.state.models[0].digest)
            for stated, begin in ((digest, 5 << 20), (b"another", 0), (b"", 0)):
                asked.resume_digest = stated
                first, *rest = raw.stub.FetchModel(asked, **raw.options)
                assert first.header.begins_at == begin
                assert (rest[0].chunk.offset, sum(len(frame.chunk.data) for frame in rest)) == (begin, nbytes - begin)
