"""How a client's container finds its name, its shard and its exit code."""

from __future__ import annotations

import importlib.util
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from puf_common.config.exit_codes import Exit

SCRIPT = Path(__file__).parents[2] / "deploy/docker/replica.py"


@pytest.fixture(scope="module")
def replica() -> ModuleType:
    spec = importlib.util.spec_from_file_location("replica", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("names", "number"),
    [
        (["project_client_3.project_default", "625581dc904d"], 3),
        (["project-client-12.project_default"], 12),
        (["625581dc904d", "puf-client-0"], 0),
        (["project-client-run-1f2e.project_default", "625581dc904d"], None),
        ([], None),
    ],
)
def test_the_number_of_a_replica(replica: ModuleType, names: Sequence[str], number: int | None) -> None:
    assert replica.replica_number(names) == number


def test_name_and_preferred_shard(replica: ModuleType) -> None:
    third = lambda: ["p_client_3.p_default"]  # noqa: E731
    assert replica.identity({}, third) == {"name": "client-3"}
    assert replica.identity({"PUF_SHARD": "lease"}, third) == {"name": "client-3", "shard": "lease:2"}
    assert replica.identity({"PUF_SHARD": "0/4", "PUF_NAME_PREFIX": "site"}, third) == {"name": "site-3"}
    assert replica.identity({"PUF_NAME": "clinic", "PUF_SHARD": "lease"}, third) == {"name": "clinic"}
    first = lambda: ["puf-client-0"]  # noqa: E731
    assert replica.identity({"PUF_SHARD": "lease", "PUF_FIRST_REPLICA": "0"}, first)["shard"] == "lease:0"
    with pytest.raises(SystemExit, match="set PUF_NAME"):
        replica.identity({}, list)


def test_only_clients_that_must_not_be_restarted_end_with_0(replica: ModuleType) -> None:
    assert {code for code in Exit if replica.ending(code) == 0} == {Exit.OK, Exit.FORGOTTEN, Exit.SUPERSEDED}
    assert replica.ending(Exit.REFUSED) == Exit.REFUSED


@pytest.mark.parametrize("compressed", [False, True])
def test_the_name_comes_from_the_dns_of_the_engine(replica: ModuleType, compressed: bool) -> None:
    """A name server that answers one question, without and with compressed names."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)

        def answer() -> None:
            asked, peer = server.recvfrom(512)
            assert b"\x019\x010\x0220\x03172\x07in-addr\x04arpa\x00" in asked
            owner = b"\xc0\x0c" if compressed else asked[12:-4]
            # A compressed answer points to "arpa" in the question.
            domain = b"\xc0" + bytes([asked.index(b"\x04arpa")]) if compressed else b"\x04arpa\x00"
            name = b"\x0ap_client_3" + domain
            head = asked[:2] + struct.pack(">5H", 0x8180, 1, 1, 0, 0)
            record = owner + struct.pack(">HHIH", 12, 1, 600, len(name)) + name
            server.sendto(head + asked[12:] + record, peer)

        thread = threading.Thread(target=answer)
        thread.start()
        assert replica.reverse("172.20.0.9", server.getsockname()) == "p_client_3.arpa"
        thread.join()
