"""Three `puf-server serve` processes of one federation in PostgreSQL, and clients that call another one each time."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import grpc

from puf_lab.federations.processes import Process, program, wait_until
from puf_server.cli.operator_client import OperatorClient
from puf_server.core.config import FederationConfig
from tests.grpc.raw import Raw, update_bytes
from tests.running import make_state
from tests.server.local import Local

__all__ = ["NAMES", "Clients", "Servers", "one_process_in_sqlite", "update"]

T = TypeVar("T")

NAMES = ("a", "b", "c")
SECONDS = 90.0
_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


def update(name: str, number: int) -> bytes:
    return update_bytes(0.1 * (1 + NAMES.index(name)) + 0.01 * number)


class Servers:
    """The processes end with `stack`."""

    def __init__(self, directory: Path, address: str, stack: ExitStack, count: int = 3) -> None:
        self.directory, self.address, self._stack = directory, address, stack
        self._starts = itertools.count()
        self._announced: dict[int, Path] = {}
        self._running: dict[int, Process] = {}
        for number in range(count):
            self._start(number)
        for number in range(count):
            self.ports(number)
        self.stopped: set[int] = set()

    def _start(self, number: int) -> None:
        started = next(self._starts)
        announced = self._announced[number] = self.directory / f"ports-{started}"
        flags = [
            "--state",
            self.address,
            "--files",
            str(self.directory / "files"),
            "--insecure",
            "--log-format",
            "json",
        ]
        flags += ["--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0", "--announce", str(announced)]
        log = self.directory / "logs" / f"server-{number}-{started}.log"
        self._running[number] = self._stack.enter_context(Process([program("puf-server"), "serve", *flags], log))

    def ports(self, number: int) -> tuple[int, int]:
        """The ports of a process, once it serves."""
        announced = self._announced[number]
        wait_until(lambda: announced.exists() and bool(announced.read_text()), SECONDS, self._running[number])
        federation, operator = map(int, announced.read_text().split())
        return federation, operator

    def control(self) -> OperatorClient:
        """Commands to a process that is not stopped."""
        number = next(n for n in self._running if n not in self.stopped)
        return OperatorClient(f"127.0.0.1:{self.ports(number)[1]}")

    def kill(self, number: int) -> None:
        """Ends a process with SIGKILL and starts it again, as a supervisor does."""
        killed = self._running.pop(number)
        killed.send(signal.SIGKILL)
        killed.wait(SECONDS)
        self._start(number)

    def stop(self, number: int) -> None:
        self._running[number].send(signal.SIGSTOP)
        self.stopped.add(number)

    def wake(self, number: int) -> None:
        self._running[number].send(signal.SIGCONT)
        self.stopped.discard(number)

    def files(self) -> dict[str, bytes]:
        """All files that records may name."""
        folders = [self.directory / "files" / name for name in ("models", "spool", "history")]
        return {str(p): p.read_bytes() for f in folders if f.exists() for p in f.iterdir() if p.suffix != ".part"}


class Clients:
    """Clients without a process. Each call goes to another server, and to the next one where that fails."""

    def __init__(self, servers: Servers, stack: ExitStack) -> None:
        self._servers, self._stack = servers, stack
        self._turn = itertools.count()
        self._raw: dict[tuple[str, int], Raw] = {}
        self._sessions: dict[str, str] = {}

    def call(self, name: str, work: Callable[[Raw], T]) -> T:
        until = time.monotonic() + SECONDS
        while True:
            number = next(self._turn) % len(self._servers._running)
            if number in self._servers.stopped:
                continue
            port = self._servers.ports(number)[0]
            if (name, port) not in self._raw:
                self._raw[name, port] = self._stack.enter_context(Raw(port, name))
            raw = self._raw[name, port]
            raw.session = self._sessions.get(name, "")
            raw.options |= {"wait_for_ready": True, "timeout": 30.0}
            try:
                result = work(raw)
            except grpc.RpcError as error:
                if error.code() not in _AGAIN or time.monotonic() > until:
                    raise
                continue
            self._sessions[name] = raw.session
            return result

    def join(self) -> None:
        for name in NAMES:
            self.call(name, Raw.join)

    def train(self, name: str, number: int, before_sending: Callable[[], None] = lambda: None) -> None:
        """Takes the work of this round and sends the update."""
        work = self.call(name, Raw.wait).train
        assert work.key.round == number, (name, number, work)
        before_sending()
        self.call(name, lambda raw: raw.submit(work, update(name, number)))


def one_process_in_sqlite(directory: Path, config: FederationConfig) -> bytes:
    """The model of the same federation without faults."""
    local = Local(make_state(directory, config))
    local.join(*NAMES)
    for number in range(1, config.plan.rounds + 1):
        for name in NAMES:
            local.submit(name, payload=update(name, number))
        local.engine.fold_ready()
    model = local.engine.store.models.payload(local.engine.state.models[config.plan.rounds])
    local.engine.close()
    return bytes(model)
