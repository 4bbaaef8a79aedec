"""A federation of real processes in one directory, for tests. All processes end with the test."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from puf_common.tensors.model_file import read_payload
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.processes import (
    Process,
    ServerProcess,
    init_server,
    program,
    unlearn_command,
    wait_until,
)
from puf_lab.spec.command_line import client_flags, data_flags
from puf_lab.spec.federation import DataSpec, FederationSpec, client_name
from puf_server.core.config import Forgetting, Recipe

__all__ = ["SETTING", "Federation", "Finished", "command", "environment", "opened", "train"]

SECONDS = 90.0

# Trains in seconds; every client has several batches, and recovery needs a round.
SETTING = FederationSpec(
    title="end to end",
    data=DataSpec(clients=4, options={"per_client": 20}),
    recipe=Recipe(lr=0.1, batch_size=8, seed=7),
    rounds=2,
    forgetting=Forgetting(max_recovery_rounds=2, strength="fixed"),
)


@dataclass
class Federation:
    """A running server and its clients."""

    directory: Path
    server: ServerProcess
    setting: FederationSpec
    stack: ExitStack
    processes: list[Process] = field(default_factory=list)

    @property
    def workplace(self) -> Path:
        """The working directory of clients: it has the user's code and the files that commands write."""
        return self.directory / "workplace"

    @property
    def clients(self) -> Path:
        """The clients' state directories."""
        return self.directory / "clients"

    def start(self, label: str, words: Sequence[str]) -> Process:
        """A process that ends with the test."""
        started = Process(words, self.directory / "logs" / f"{label}.log", cwd=self.workplace)
        return self.stack.enter_context(started)

    def fleet(self, *, without: Collection[int] = (), wait: bool = True) -> Process:
        """Starts all clients except `without`, and waits until they have joined."""
        left_out = [word for shard in without for word in ("--except", str(shard))]
        words = [program("puf-client"), "fleet", "--clients", str(self.setting.clients), *left_out, *self._where()]
        words += data_flags(self.setting)
        label = f"fleet-{len(self.processes)}"
        self.processes.append(self.start(label, [*words, "--log-dir", str(self.directory / "logs" / label)]))
        if wait:
            self.joined(i for i in range(self.setting.clients) if i not in without)
        return self.processes[-1]

    def run(self, shard: int, *more: str) -> Process:
        """Starts `puf-client run` for one shard and waits until it has joined."""
        started = self.start(f"client-{shard}", self.run_command(shard, *more))
        wait_until(lambda: self.alive(shard), SECONDS, self.server, started)
        return started

    def run_command(self, shard: int, *more: str) -> list[str]:
        return [program("puf-client"), "run", *self._where(), *client_flags(self.setting, shard), *more]

    def _where(self) -> list[str]:
        return ["--server", self.server.address, "--state", str(self.clients), "--log-format", "json"]

    def unlearn(self, shard: int, *more: str) -> Process:
        """Starts `puf-client --unlearn --yes` for one shard."""
        words = unlearn_command(self.setting, self.server, self.clients, shard, "--log-format", "json", *more)
        return self.start(f"unlearn-{shard}", words)

    def joined(self, shards: Iterable[int]) -> None:
        names = {client_name(i) for i in shards}
        wait_until(
            lambda: names <= {c.name for c in self.server.control.clients() if c.alive},
            SECONDS,
            self.server,
            *self.processes,
        )

    def alive(self, shard: int) -> bool:
        return any(c.alive for c in self.server.control.clients() if c.name == client_name(shard))

    def idle(self, rounds: int | None = None) -> None:
        """Waits until all planned rounds are done and the federation is idle."""

        def done() -> bool:
            status = self.server.control.status()
            trained = status.rounds_trained >= (status.rounds_planned if rounds is None else rounds)
            return trained and status.position.phase == fed.PHASE_IDLE

        wait_until(done, SECONDS, self.server, *self.processes)

    def ticket(self, shard: int) -> tk.Ticket:
        (found,) = [t for t in self.server.control.tickets() if t.client == client_name(shard)]
        return found  # type: ignore[no-any-return]

    def member(self, shard: int) -> Any:
        (found,) = [c for c in self.server.control.clients() if c.name == client_name(shard)]
        return found

    def round(self, number: int) -> Any:
        (found,) = [r for r in self.server.control.rounds(limit=1000) if r.number == number and r.phase == "committed"]
        return found

    def payload(self) -> bytes:
        """The newest model that is ready."""
        path = self.directory / "exported.safetensors"
        self.server.control.export(path)
        return bytes(read_payload(path))

    def end(self) -> None:
        """Stops server and clients as `puf-server stop` does, so that the state can be copied."""
        self.server.control.stop()
        for process in (*self.processes, self.server):
            process.wait(30)


@contextmanager
def opened(
    directory: Path,
    setting: FederationSpec = SETTING,
    *,
    of: Path | None = None,
    init: Sequence[str] = (),
    code: Path | None = None,
) -> Iterator[Federation]:
    """Serves a copy of the federation in `of`, or a new one. All processes end with the block.

    `code` is a module of the user.
    """
    (directory / "workplace").mkdir(parents=True)
    if code is not None:
        shutil.copy(code, directory / "workplace")
    if of is None:
        init_server(directory / "server", setting, clients=setting.clients, more=init)
    else:
        shutil.copytree(of / "server", directory / "server", ignore=shutil.ignore_patterns("lock"))
        shutil.copytree(of / "clients", directory / "clients")
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(directory / "server", directory / "logs" / "server.log"))
        assert isinstance(server, ServerProcess)
        yield Federation(directory, server, setting, stack)


def train(directory: Path, setting: FederationSpec = SETTING) -> bytes:
    """Trains a new federation of processes until it is idle, and stops it. Returns its model."""
    with opened(directory, setting) as federation:
        federation.fleet()
        federation.idle()
        payload = federation.payload()
        federation.clients.mkdir(exist_ok=True)
        federation.end()
    return payload


@dataclass(frozen=True)
class Finished:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error:")]


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of this process without settings of PUF, and with a separate home for client state."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PUF_")}
    return {**ours, "XDG_STATE_HOME": str(home), "COLUMNS": "120", **more}


def command(
    words: Sequence[str], *, env: dict[str, str] | None = None, cwd: Path | None = None, seconds: float = SECONDS
) -> Finished:
    """Runs a console script of this installation, or another program, until it ends."""
    first = program(words[0]) if words[0] in ("puf-server", "puf-client", "puf-lab", "python") else words[0]
    done = subprocess.run(
        [first, *words[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        env=env,
        cwd=cwd,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)
