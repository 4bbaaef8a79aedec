"""Servers whose state is in PostgreSQL: one serves, the others stand by, and deaths change no bit of the model."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
from tests.e2e.federation import SECONDS
from tests.grpc.raw import Raw, update_bytes
from tests.postgres import Postgres
from tests.running import make_state, tiny_config
from tests.server.local import Local

from puf_lab.federations.processes import Process, program, run_server_command, wait_until
from puf_server.cli.operator_client import OperatorClient
from puf_server.core.config import FederationConfig

T = TypeVar("T")

pytestmark = pytest.mark.e2e


class Servers:
    """Three `puf-server serve --standby` on the same ports. The one that serves has announced them."""

    def __init__(self, directory: Path, address: str, stack: ExitStack) -> None:
        self.directory, self.address, self._stack = directory, address, stack
        self.port, self.operator_port = _free_ports()
        self.control = OperatorClient(f"127.0.0.1:{self.operator_port}")
        self._running: dict[str, Process] = {}
        for name in ("one", "two", "three"):
            self._running[name] = self._start(name)

    def _announced(self, name: str) -> Path:
        return self.directory / f"{name}.ports"

    def _start(self, name: str) -> Process:
        flags = ["--state", self.address, "--files", str(self.directory / "files"), "--standby", "--insecure"]
        flags += ["--listen", f"127.0.0.1:{self.port}", "--operator", f"127.0.0.1:{self.operator_port}"]
        flags += ["--announce", str(self._announced(name)), "--log-format", "json"]
        log = self.directory / "logs" / f"{name}.log"
        return self._stack.enter_context(Process([program("puf-server"), "serve", *flags], log))

    def serving(self) -> str:
        """The name of the process that serves."""
        found: list[str] = []

        def announced() -> bool:
            found[:] = [name for name in self._running if self._announced(name).exists()]
            return bool(found)

        wait_until(announced, SECONDS, *self._running.values())
        (name,) = found
        return name

    def kill_the_serving_one(self) -> None:
        """Ends it with SIGKILL and starts it again, as a supervisor does. Returns when another one serves."""
        name = self.serving()
        killed = self._running.pop(name)
        killed.send(signal.SIGKILL)
        killed.wait(SECONDS)
        self._announced(name).unlink()
        assert self.serving() != name
        self._running[name] = self._start(name)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for free in (first, second):
            free.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


NAMES = ("a", "b", "c")
ROUNDS = 4


def update(name: str, number: int) -> bytes:
    return update_bytes(0.1 * (1 + NAMES.index(name)) + 0.01 * number)


def retried(call: Callable[[], T]) -> T:
    """The answer of the server, however often it dies."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) or time.monotonic() > until:
                raise


def one_process_in_sqlite(directory: Path, config: FederationConfig) -> bytes:
    """The model of the same federation without faults."""
    local = Local(make_state(directory, config))
    local.join(*NAMES)
    for number in range(1, ROUNDS + 1):
        for name in NAMES:
            local.submit(name, payload=update(name, number))
        local.engine.fold_ready()
    model = local.engine.store.models.payload(local.engine.state.models[ROUNDS])
    local.engine.close()
    return bytes(model)


def test_killed_servers_and_a_restarted_database_change_no_bit(tmp_path: Path, postgres: Postgres) -> None:
    config = tiny_config(plan={"min_clients": 3, "rounds": ROUNDS, "absent_seconds": 600.0})
    address = postgres.address()
    make_state(tmp_path / "files", config, database=address)
    with ExitStack() as stack:
        servers = Servers(tmp_path, address, stack)
        clients = [stack.enter_context(Raw(servers.port, name)) for name in NAMES]
        for client in clients:
            client.options["wait_for_ready"] = True
            retried(client.join)
        for number in range(1, ROUNDS + 1):
            for client in clients:
                work = retried(client.wait).train
                assert work.key.round == number
                if (number, client.name) in ((2, "b"), (3, "a")):
                    servers.kill_the_serving_one()
                if (number, client.name) == (2, "c"):
                    postgres.restart("immediate")
                retried(lambda client=client, work=work: client.submit(work, update(client.name, work.key.round)))  # type: ignore[misc]
        wait_until(lambda: servers.control.status().rounds_trained == ROUNDS, SECONDS)
        model = retried(lambda: clients[0].fetch(ROUNDS))
        run_server_command("audit", "verify", "--state", address, "--files", str(tmp_path / "files"))
    assert model == one_process_in_sqlite(tmp_path / "reference", config)
