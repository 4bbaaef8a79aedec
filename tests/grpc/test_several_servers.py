"""Clients of several servers: one ends, and its clients continue at another; one deletes a model that another sends."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from tests.grpc.raw import Raw, status
from tests.pki import Pki
from tests.running import make_state, running

from puf_client.transport.grpc import GrpcTransport
from puf_client.transport.retry import RetryPolicy
from puf_common.errors import UsageError
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.storage.stored_files import StoredFile


def test_a_client_continues_at_another_server(tmp_path: Path) -> None:
    make_state(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with running(tmp_path / "two") as second, ExitStack() as stack:
        first = stack.enter_context(running(tmp_path / "one"))
        addresses = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
        with GrpcTransport(addresses, "a", retry=RetryPolicy(30.0)) as transport:
            assert transport.describe().federation_id == "f-test"
            stack.close()
            assert transport.describe().federation_id == "f-test"


def test_several_servers_under_tls_have_a_common_name(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki", "puf.example.org")
    make_state(tmp_path / "state")
    with running(tmp_path / "state", pki.server_tls()) as server:
        addresses = f"127.0.0.1:1,127.0.0.1:{server.port}"
        with GrpcTransport(addresses, "a", tls=pki.client("a", server_name="puf.example.org")) as transport:
            assert transport.describe().federation_id == "f-test"
        with pytest.raises(UsageError, match="--tls-server-name"):
            GrpcTransport(addresses, "b", tls=pki.client("b"))


def test_a_model_that_is_deleted_before_it_is_read_is_not_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(make_state(tmp_path / "state")) as server, Raw(server.port, "anna") as anna:
        anna.join()
        engine = server.engine
        read = engine.store.models.read

        def deleted_first(model: ModelVersion) -> StoredFile:
            """Another server withdraws and deletes the model after this one has chosen it."""
            gone = replace(model, status=ModelStatus.DELETED)
            engine.change(lambda state, _: replace(state, models={**state.models, model.version: gone}))
            engine.delete_orphans()
            return read(model)

        monkeypatch.setattr(engine.store.models, "read", deleted_first)
        with pytest.raises(grpc.RpcError) as caught:
            anna.fetch(0)
    assert status(caught.value)[0] == "NOT_FOUND"
    assert caught.value.details() == "model 0 was deleted"
