"""HOST:PORT is read in one place, and an impossible port is refused before a connection is tried."""

from __future__ import annotations

import pytest

from puf_client.transport.grpc import GrpcTransport
from puf_common.errors import UsageError
from puf_common.network.addresses import check_target, check_targets, grpc_target, is_loopback, parse_address
from puf_server.cli.operator_client import OperatorClient


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:7300", "localhost", 7300),
        ("0.0.0.0:1", "0.0.0.0", 1),
        ("puf.example.org:65535", "puf.example.org", 65535),
        ("[::1]:443", "::1", 443),
    ],
)
def test_host_and_port_are_parsed(text: str, host: str, port: int) -> None:
    assert parse_address(text, "--listen") == (host, port)
    assert check_target(text, "--server") == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("localhost", "must be HOST:PORT"),
        ("7300", "must be HOST:PORT"),
        (":7300", "must be HOST:PORT"),
        ("[]:7300", "must be HOST:PORT"),
        ("localhost:", "must be HOST:PORT"),
        ("localhost:-1", "must be HOST:PORT"),
        ("localhost:７３", "must be HOST:PORT"),
        ("::1:7300", r"\[::1\]:7300"),
        ("localhost:0", "between 1 and 65535"),
        ("localhost:65536", "between 1 and 65535"),
        ("localhost:99999", "between 1 and 65535"),
        (f"localhost:{'9' * 5000}", "between 1 and 65535"),
    ],
)
def test_any_other_text_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"--server .*{says}"):
        parse_address(text, "--server")
    with pytest.raises(UsageError, match=says):
        check_target(text, "--server")
    with pytest.raises(UsageError, match=says):
        GrpcTransport(text, "anna")
    with pytest.raises(UsageError, match=says):
        OperatorClient(text)


def test_port_0_is_a_free_port_where_a_server_listens() -> None:
    assert parse_address("127.0.0.1:0", "--listen", free_port=True).port == 0
    with pytest.raises(UsageError, match="between 0 and 65535"):
        parse_address("127.0.0.1:65536", "--listen", free_port=True)


def test_a_client_may_name_a_socket_or_a_resolver() -> None:
    assert check_target("unix:/run/puf.sock", "--server") == "unix:/run/puf.sock"
    assert check_target("dns:///puf.example.org:443", "--server") == "dns:///puf.example.org:443"
    with pytest.raises(UsageError, match="must be HOST:PORT"):
        check_target("dns:///puf.example.org", "--server")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:8000", True),
        ("127.8.9.1:1", True),
        ("localhost:8000", True),
        ("[::1]:8000", True),
        ("unix:/run/puf.sock", True),
        ("dns:///localhost:8000", True),
        ("10.0.0.1:8000", False),
        ("puf.example.org:443", False),
        ("localhost.example.org:443", False),
    ],
)
def test_loopback(target: str, expected: bool) -> None:
    assert is_loopback(target) is expected


@pytest.mark.parametrize(
    ("text", "target", "here"),
    [
        ("puf.example.org:7300", "puf.example.org:7300", False),
        ("10.0.0.1:7300,10.0.0.2:7300", "ipv4:10.0.0.1:7300,10.0.0.2:7300", False),
        ("127.0.0.1:1,127.0.0.1:2", "ipv4:127.0.0.1:1,127.0.0.1:2", True),
        ("[::1]:7300,[fd00::2]:7300", "ipv6:[::1]:7300,[fd00::2]:7300", False),
    ],
)
def test_several_servers_are_one_target(text: str, target: str, here: bool) -> None:
    assert grpc_target(check_targets(text, "--server")) == target
    assert is_loopback(text) is here


@pytest.mark.parametrize("text", ["a.example:1,b.example:1", "10.0.0.1:1,[::1]:1", "10.0.0.1:1,localhost:1"])
def test_several_servers_must_be_addresses_of_one_kind(text: str) -> None:
    with pytest.raises(UsageError, match="several servers must all have IPv4"):
        GrpcTransport(text, "a")
    with pytest.raises(UsageError):
        OperatorClient(text)
