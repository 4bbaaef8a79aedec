"""Updates state one of two digests, models have both. A client that fetches slowly delays no other client."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from blake3 import blake3
from tests.grpc.raw import Raw, status, update_bytes
from tests.running import make_state, running, tiny_config

from puf_client.transport.grpc import GrpcTransport
from puf_common.errors import TransferCorrupted
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tensors_pb2 as ts

BLAKE3 = ts.DIGEST_KIND_BLAKE3


def test_an_update_may_state_either_digest_and_no_other(tmp_path: Path) -> None:
    with running(make_state(tmp_path / "state", tiny_config())) as server:
        anna, bert = (Raw(server.port, name) for name in ("anna", "bert"))
        assert list(anna.join().digest_kinds) == [BLAKE3]
        bert.join()
        payload = update_bytes()
        right = {"digest": blake3(payload).digest(), "digest_kind": BLAKE3}
        # After three refusals in a row the round would not wait for a client.
        for client, wrong, code in (
            (anna, {"digest_kind": BLAKE3}, "DATA_LOSS"),
            (anna, {"digest": right["digest"]}, "DATA_LOSS"),
            (bert, right | {"digest_kind": 7}, "INVALID_ARGUMENT"),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                client.submit(client.wait().train, payload, **wrong)
            assert status(caught.value)[0] == code
        work = anna.wait().train
        assert anna.submit(work, payload, **right).duplicate is False
        assert anna.submit(work, payload, **right).duplicate is True
        assert bert.submit(bert.wait().train, payload).duplicate is False


def test_an_update_with_either_digest_outlives_the_server(tmp_path: Path) -> None:
    state = make_state(tmp_path / "state", tiny_config(plan={"min_clients": 3, "start_clients": 3}))
    payload = update_bytes()
    with running(state) as server:
        clients = [Raw(server.port, name) for name in ("anna", "bert", "carl")]
        for client in clients:
            client.join()
        for client, fields in zip(
            clients, ({"digest": blake3(payload).digest(), "digest_kind": BLAKE3}, {}), strict=False
        ):
            client.submit(client.wait().train, payload, **fields)
    with running(state) as server:
        current = server.engine.state.round
        assert current is not None
        assert {update.digest_kind for update in current.received.values()} == {"blake3", "sha256"}


def test_models_have_both_digests_and_are_checked_by_one_that_is_there(tmp_path: Path) -> None:
    with running(make_state(tmp_path / "state", tiny_config())) as server:
        Raw(server.port, "anna").join()
        store, models = server.engine.store, server.engine.state.models
        payload = bytes(store.models.payload(models[0]))
        with GrpcTransport(f"127.0.0.1:{server.port}", "anna") as transport:
            header, fetched = transport.fetch_model(0)
            assert (header.digest, header.blake3) == (hashlib.sha256(payload).digest(), blake3(payload).digest())
            assert bytes(fetched) == payload
            # Like a model of a version with one digest only.
            server.engine.state = replace(server.engine.state, models={0: replace(models[0], blake3="")})
            assert transport.fetch_model(0)[0].blake3 == b""
            # The first digits are in the name of the file.
            other = models[0].digest[:16] + 48 * "0"
            for damaged in (replace(models[0], blake3=other), replace(models[0], blake3="", digest=other)):
                server.engine.state = replace(server.engine.state, models={0: damaged})
                with pytest.raises(TransferCorrupted):
                    transport.fetch_model(0)


def test_a_client_that_does_not_read_loses_its_permit(tmp_path: Path) -> None:
    manifest = Manifest((TensorSpec("w", "f32", (4_000_000,)),))
    config = tiny_config(limits={"downloads": 1})
    with running(make_state(tmp_path / "state", config, manifest, bytearray(manifest.nbytes(MODEL)))) as server:
        anna, bert = (Raw(server.port, name) for name in ("anna", "bert"))
        for client in (anna, bert):
            client.join(manifest_fingerprint=manifest.fingerprint)
        stuck = iter(anna.stub.FetchModel(fed.FetchModelRequest(version=0), **anna.options))
        assert next(stuck).WhichOneof("frame") == "header"
        whole = bert.stub.FetchModel(fed.FetchModelRequest(version=0), **bert.options)
        assert sum(len(frame.chunk.data) for frame in whole) == manifest.nbytes(MODEL)
        assert sum(len(frame.chunk.data) for frame in stuck) == manifest.nbytes(MODEL)
