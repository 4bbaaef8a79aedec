"""Shards over gRPC: a lease survives a restart of the server, and the operator can release it."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest
from pydantic import ValidationError
from tests.grpc.raw import Raw, status
from tests.running import make_state, running, tiny_config

from puf_client.options import LocalOptions
from puf_client.state.directory import StateDirectory
from puf_client.transport.grpc import GrpcTransport
from puf_client.worker.lease import leased
from puf_common.errors import Mismatch, NotNow, TooMuch, UsageError
from puf_common.v1 import federation_pb2 as fed
from puf_server.cli.operator_client import OperatorClient
from puf_server.runtime.server import Server
from puf_server.storage.state_store import Store


def shard_of(server: Server, name: str, shard: str = "lease", home: Path | None = None, **flags: bool) -> str:
    """The shard that the client of this name gets. Without a directory of its own it stores no shard."""
    with GrpcTransport(f"127.0.0.1:{server.port}", name) as transport, TemporaryDirectory() as fresh:
        return leased(LocalOptions(shard=shard), transport, StateDirectory((home or Path(fresh)) / name), **flags).shard


def test_a_lease_survives_a_restart(tmp_path: Path) -> None:
    state = make_state(tmp_path / "state", tiny_config(plan={"shards": 3}))
    with running(state) as server:
        assert shard_of(server, "anna", "lease:2") == "2/3"
        assert shard_of(server, "bert") == "0/3"
        assert shard_of(server, "cleo", "1/7") == "1/7"
    with running(state) as server:
        assert shard_of(server, "bert") == "0/3"
        assert shard_of(server, "anna") == "2/3"
        assert shard_of(server, "cleo") == "1/3"
        with pytest.raises(TooMuch, match="the operator can release"):
            shard_of(server, "dora")
        with Raw(server.port, "anna") as anna, OperatorClient(f"127.0.0.1:{server.operator_port}") as control:
            anna.join()
            assert [(x.name, x.shard) for x in control.clients()] == [("anna", 2)]
            with pytest.raises(NotNow, match="anna is a member"):
                control.release_shard("anna")
            assert control.release_shard("bert") == 0
        assert shard_of(server, "dora") == "0/3"


def test_a_server_whose_state_lacks_the_lease(tmp_path: Path) -> None:
    state, home = make_state(tmp_path / "state", tiny_config(plan={"shards": 3})), tmp_path / "home"
    old = shutil.copytree(state, tmp_path / "old")
    with running(state) as server:
        assert shard_of(server, "bert", home=home) == "0/3"
        assert shard_of(server, "anna", home=home) == "1/3"
    # Restored from before the lease: anna gets her shard again, also when another client asks first.
    with running(old) as server:
        assert shard_of(server, "anna", home=home) == "1/3"
        assert shard_of(server, "cleo", home=home) == "0/3"
        with pytest.raises(Mismatch, match="bert has worked on shard 0/3, the server leases it 2/3"):
            shard_of(server, "bert", home=home)
        # A new membership gets a new lease.
        assert shard_of(server, "bert", home=home, new_membership=True) == "2/3"
        assert shard_of(server, "bert", home=home) == "2/3"


def test_a_federation_without_shards_says_so(tmp_path: Path) -> None:
    with running(make_state(tmp_path / "state")) as server, Raw(server.port, "anna") as anna:
        with pytest.raises(grpc.RpcError) as caught:
            anna.stub.LeaseShard(fed.LeaseShardRequest(), **anna.options)
        assert status(caught.value) == ("FAILED_PRECONDITION", "NOT_NOW")


def test_a_state_from_before_there_were_leases(tmp_path: Path) -> None:
    state = make_state(tmp_path / "state", tiny_config(plan={"shards": 1}))
    with sqlite3.connect(state / "state.db") as db:
        db.execute("DELETE FROM meta WHERE key = 'leases'")
    db.close()
    store = Store.open(state)
    assert store.load().leases == {}
    store.close()
    with running(state) as server:
        assert shard_of(server, "anna") == "0/1"


def test_health_is_reported_by_the_standard_service(tmp_path: Path) -> None:
    with (
        running(make_state(tmp_path / "state")) as server,
        OperatorClient(f"127.0.0.1:{server.operator_port}") as control,
    ):
        assert control.health() == "SERVING"


@pytest.mark.parametrize("shard", ["lease:", "lease:x", "lease:-1", "leases", "3/3"])
def test_an_invalid_shard_is_refused(shard: str) -> None:
    with pytest.raises(ValidationError, match=r"or lease"):
        LocalOptions(shard=shard)


def test_a_shard_is_not_known_before_it_is_leased() -> None:
    with pytest.raises(UsageError, match="--shard I/N"):
        _ = LocalOptions(shard="lease").shard_of
