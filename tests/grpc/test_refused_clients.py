"""A client whose updates are refused again and again does not stop the others, and the operator sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.grpc.raw import Raw, nan_update, update_bytes
from tests.running import make_state, running, tiny_config

from puf_lab.federations.processes import wait_until
from puf_server.runtime.server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    config = tiny_config(plan={"rounds": 2, "min_clients": 3, "absent_seconds": 3600.0})
    with running(make_state(tmp_path / "state", config)) as server:
        yield server


@pytest.fixture
def clients(server: Server) -> Iterator[dict[str, Raw]]:
    clients = {name: Raw(server.port, name) for name in ("anna", "bert", "cleo")}
    for client in clients.values():
        client.join()
    yield clients
    for client in clients.values():
        client.channel.close()


def refuse(client: Raw, times: int) -> None:
    for _ in range(times):
        with pytest.raises(grpc.RpcError):
            client.submit(client.wait().train, nan_update())


def test_the_round_goes_on_without_it_and_trouble_names_it(server: Server, clients: dict[str, Raw]) -> None:
    refuse(clients["anna"], 3)
    assert "updates are refused repeatedly: anna (" in server.engine.troubles.text()
    for name in ("bert", "cleo"):
        clients[name].submit(clients[name].wait().train)
    wait_until(lambda: server.engine.state.version == 1, 20)
    assert server.engine.state.records[1].contributions == 2
    # An update that is accepted ends the trouble.
    clients["anna"].submit(clients["anna"].wait().train)
    assert server.engine.troubles.text() == ""


def test_fewer_refusals_in_a_row_are_not_held_against_a_client(server: Server, clients: dict[str, Raw]) -> None:
    anna = clients["anna"]
    refuse(anna, 2)
    anna.submit(anna.wait().train, update_bytes(0.1))
    for name in ("bert", "cleo"):
        clients[name].submit(clients[name].wait().train)
    wait_until(lambda: server.engine.state.version == 1, 20)
    refuse(anna, 2)
    assert server.engine.troubles.text() == ""
    assert server.engine.state.round is not None
    assert not server.engine.state.round.declined


def test_a_target_that_is_refused_tries_again_later(server: Server, clients: dict[str, Raw]) -> None:
    for _ in range(2):
        for client in clients.values():
            client.submit(client.wait().train)
    wait_until(lambda: server.engine.state.version == 2, 20)
    anna = clients["anna"]
    anna.file()
    refuse(anna, 3)
    (ticket,) = server.engine.state.tickets.values()
    assert ticket.state == "pending"
    assert ticket.not_before is not None
    assert "its updates are refused" in ticket.history[-1].note


def test_nothing_is_known_of_it_after_it_was_forgotten(server: Server, clients: dict[str, Raw]) -> None:
    anna = clients["anna"]
    refuse(anna, 3)
    anna.file()
    for name in ("bert", "cleo"):
        clients[name].submit(clients[name].wait().train)
    # No model contains it: it is forgotten at the end of the round.
    wait_until(lambda: server.engine.state.members["anna"].status == "forgotten", 20)
    wait_until(lambda: "anna" not in server.engine.troubles.text(), 20)
