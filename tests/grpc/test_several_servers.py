"""A client with the addresses of several servers continues at another one when its server ends."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.pki import Pki
from tests.running import make_state, running

from puf_client.transport.grpc import GrpcTransport
from puf_client.transport.retry import RetryPolicy
from puf_common.errors import UsageError


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
