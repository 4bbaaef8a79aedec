"""Several servers of one federation in PostgreSQL: deaths, pauses and lost connections change no bit of the model."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.grpc.raw import Raw
from tests.postgres import Postgres
from tests.running import make_state, tiny_config
from tests.several_servers import NAMES, SECONDS, Clients, Servers, one_process_in_sqlite

from puf_lab.federations.processes import Process, program, run_server_command, wait_until
from puf_server.cli.operator_client import OperatorClient

pytestmark = pytest.mark.e2e


CONFIG = tiny_config(plan={"min_clients": 3, "rounds": 4, "absent_seconds": 600.0})


@contextmanager
def served(directory: Path, postgres: Postgres) -> Iterator[tuple[str, Servers, Clients]]:
    """Three servers of one federation, and its clients, which have joined."""
    address = postgres.address()
    make_state(directory / "files", CONFIG, database=address)
    with ExitStack() as stack:
        servers = Servers(directory, address, stack)
        clients = Clients(servers, stack)
        clients.join()
        yield address, servers, clients


def test_three_servers_that_die_make_the_model_of_one(tmp_path: Path, postgres: Postgres) -> None:
    with served(tmp_path, postgres) as (address, servers, clients):
        faults = {
            (2, "a"): lambda: servers.kill(0),
            (2, "c"): lambda: postgres.restart("immediate"),
            (3, "c"): lambda: servers.kill(1),
            (4, "b"): lambda: servers.kill(2),
        }
        for number in range(1, 5):
            for name in NAMES:
                clients.train(name, number, faults.get((number, name), lambda: None))
        wait_until(lambda: servers.control().status().rounds_trained == 4, SECONDS)
        model = clients.call("a", lambda raw: raw.fetch(4))
        run_server_command("audit", "verify", "--state", address, "--files", str(tmp_path / "files"))
    assert model == one_process_in_sqlite(tmp_path / "reference", CONFIG)


def test_a_server_that_was_stopped_over_whole_rounds_changes_nothing_when_it_wakes(
    tmp_path: Path, postgres: Postgres
) -> None:
    with served(tmp_path, postgres) as (_, servers, clients):
        for name in NAMES:
            clients.train(name, 1)
        servers.stop(0)
        for number in (2, 3):
            for name in NAMES:
                clients.train(name, number)
        clients.train("a", 4)
        before, files = servers.control().status(), servers.files()
        servers.wake(0)
        woken = OperatorClient(f"127.0.0.1:{servers.ports(0)[1]}")
        wait_until(lambda: woken.status().position == before.position, SECONDS)
        assert servers.files() == files
        assert servers.control().status().round == before.round
        for name in ("b", "c"):
            clients.train(name, 4)
        wait_until(lambda: woken.status().rounds_trained == 4, SECONDS)
        model = clients.call("a", lambda raw: raw.fetch(4))
    assert model == one_process_in_sqlite(tmp_path / "reference", CONFIG)


def test_workers_share_a_port_and_a_dead_one_is_started_again(tmp_path: Path, postgres: Postgres) -> None:
    address, announced = postgres.address(), tmp_path / "ports"
    make_state(tmp_path / "files", tiny_config(), database=address)
    words = [program("puf-server"), "serve", "--state", address, "--files", str(tmp_path / "files"), "--workers", "2"]
    words += ["--insecure", "--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0", "--announce", str(announced)]
    with Process([*words, "--log-format", "json"], tmp_path / "log") as server:
        wait_until(announced.exists, SECONDS, server)
        port, operator = map(int, announced.read_text().split())
        control = OperatorClient(f"127.0.0.1:{operator}")

        def lines(event: str) -> list[dict[str, object]]:
            found = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
            return [line for line in found if line["event"] == event]

        def workers() -> list[int]:
            return [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]

        assert {line["worker"] for line in lines("serving")} == {1, 2}
        dying = next(pid for pid in workers() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(dying, signal.SIGKILL)
        wait_until(lambda: len(lines("serving")) == 3, SECONDS, server)
        assert len(lines("a worker has died and is started again")) == 1
        for name in NAMES:
            with Raw(port, name) as client:
                client.options["wait_for_ready"] = True
                client.join()
        assert {client.name for client in control.clients()} == set(NAMES)
        control.stop()
        assert server.wait(SECONDS) == 0
    assert len(lines("stopping")) == 2
