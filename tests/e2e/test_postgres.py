"""Servers whose state is in PostgreSQL: one serves, the others stand by, and deaths change no bit of the model."""

from __future__ import annotations

import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.federation import SECONDS, SETTING
from tests.postgres import Postgres

from puf_common.tensors.model_file import read_payload
from puf_common.v1 import federation_pb2 as fed
from puf_lab.federations.processes import Process, init_server, program, run_server_command, wait_until
from puf_lab.spec.command_line import data_flags
from puf_server.cli.operator_client import OperatorClient

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

    def trained(self, rounds: int) -> None:
        wait_until(lambda: self.control.status().rounds_trained >= rounds, SECONDS, *self._running.values())

    def idle(self) -> None:
        def done() -> bool:
            status = self.control.status()
            return status.rounds_trained >= SETTING.rounds and status.position.phase == fed.PHASE_IDLE

        wait_until(done, SECONDS, *self._running.values())


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for free in (first, second):
            free.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def test_killed_servers_and_a_restarted_database_change_no_bit(
    tmp_path: Path, postgres: Postgres, trained: Path
) -> None:
    address, files = postgres.address(), str(tmp_path / "files")
    init_server(tmp_path / "files", SETTING, clients=SETTING.clients, more=["--state", address, "--files", files])
    with ExitStack() as stack:
        servers = Servers(tmp_path, address, stack)
        servers.serving()
        words = [program("puf-client"), "fleet", "--clients", str(SETTING.clients), *data_flags(SETTING)]
        words += ["--server", f"127.0.0.1:{servers.port}", "--state", str(tmp_path / "clients")]
        fleet = Process([*words, "--log-dir", str(tmp_path / "logs")], tmp_path / "logs" / "fleet.log")
        stack.enter_context(fleet)
        servers.kill_the_serving_one()
        servers.trained(1)
        postgres.restart("immediate")
        servers.kill_the_serving_one()
        servers.idle()
        servers.control.export(tmp_path / "model.safetensors")
        run_server_command("audit", "verify", "--state", address, "--files", files)
    assert bytes(read_payload(tmp_path / "model.safetensors")) == (trained / "model").read_bytes()
