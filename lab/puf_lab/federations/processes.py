"""Server and client processes on loopback: started, watched, and always ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from puf_common.errors import PufError, Unavailable
from puf_lab.spec.command_line import client_flags, data_flags, server_flags
from puf_lab.spec.federation import FederationSpec
from puf_server.cli.operator_client import OperatorClient

# Short intervals, so that a federation on one machine notices an ended client within seconds.
PLAN = {"heartbeat_seconds": 1.0, "absent_seconds": 6.0}
_START_SECONDS = 60.0
# On Linux the child asks for SIGTERM at its parent's death, then becomes the program. A preexec_fn would run between
# fork and exec, in a process whose gRPC threads are gone.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; "
    "sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 15); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *words]


def program(name: str) -> str:
    """Path of a console script of this installation."""
    return str(Path(sys.executable).with_name(name))


class Process:
    """A child process with a log file. It ends when the context is left."""

    def __init__(
        self, command: Sequence[str], log: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("ab") as out:
            # In a new session: the keyboard's interrupt reaches only the experiment, which then ends its children.
            self._child = subprocess.Popen(  # noqa: S603
                _command(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=cwd,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def code(self) -> int | None:
        return self._child.poll()

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float) -> int:
        """The exit code of a process that ends by itself within this time."""
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise PufError(f"{self.log.stem} did not end within {seconds:g} s; see {self.log}") from None

    def end(self, seconds: float = 15.0) -> int:
        """Terminates the process, and kills it after this time. Returns the exit code."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(seconds)
            except subprocess.TimeoutExpired:
                self._child.kill()
        return self._child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def tail(self, lines: int = 5) -> str:
        """The last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class ServerProcess(Process):
    """`puf-server serve` on free ports. The constructor returns when the server accepts calls.

    With `database`, the address of a PostgreSQL schema, several servers can serve one state.
    """

    def __init__(
        self,
        state: Path,
        log: Path,
        *,
        listen: str = "127.0.0.1:0",
        operator: str = "127.0.0.1:0",
        security: Sequence[str] = ("--insecure",),
        database: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        announce = log.with_suffix(".ports")
        announce.unlink(missing_ok=True)
        place = ["--state", database, "--files", str(state)] if database else ["--state", str(state)]
        flags = [*place, *security, "--listen", listen, "--operator", operator]
        flags += ["--announce", str(announce), "--log-format", "json"]
        super().__init__([program("puf-server"), "serve", *flags], log, env=env)
        wait_until(lambda: announce.exists() and announce.read_text().endswith("\n"), _START_SECONDS, self)
        # A third port is that of the metrics.
        self.port, self.operator_port, *self.more_ports = map(int, announce.read_text().split())
        self.address = f"127.0.0.1:{self.port}"
        self.control = OperatorClient(f"127.0.0.1:{self.operator_port}")


class DashboardProcess(Process):
    """`puf-server dashboard` of a state directory on a free port. The constructor returns when it accepts requests."""

    def __init__(self, state: Path, log: Path, port: int = 0) -> None:
        announce = state.parent / f"{state.name}.dashboard"
        announce.unlink(missing_ok=True)
        flags = ["--state", str(state), "--web", f"127.0.0.1:{port}", "--announce", str(announce)]
        super().__init__([program("puf-server"), "dashboard", *flags, "--log-format", "json"], log)
        wait_until(lambda: announce.exists() and announce.read_text().endswith("\n"), _START_SECONDS, self)
        self.port = int(announce.read_text())
        self.url = f"http://127.0.0.1:{self.port}"


def wait_until(done: Callable[[], bool], seconds: float, *processes: Process, poll: float = 0.05) -> None:
    """Returns when `done` is true. Fails with the end of the log when one of the processes ends before."""
    until = time.monotonic() + seconds
    while True:
        try:
            if done():
                return
        except Unavailable:
            if any(p.code is not None for p in processes) or time.monotonic() >= until:
                raise
        for process in processes:
            if process.code is not None:
                raise PufError(f"{process.log.stem} ended with code {process.code}:\n{process.tail()}")
        if time.monotonic() > until:
            raise PufError(f"not within {seconds:g} s; logs are in {processes[0].log.parent if processes else '.'}")
        time.sleep(poll)


def run_server_command(*words: str) -> None:
    """Runs a command of `puf-server` that ends by itself."""
    command = _command([program("puf-server"), *words])
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise PufError(f"puf-server {words[0]} failed: {done.stderr.strip() or done.stdout.strip()}")


def init_server(state: Path, spec: FederationSpec, *, clients: int, more: Sequence[str] = ()) -> None:
    """Runs `puf-server init` for a spec. `more` are further flags, which replace those of the spec."""
    flags = server_flags(spec.server_config(clients=clients, plan=PLAN))
    run_server_command("init", "--state", str(state), *flags, *more)


def fleet(
    spec: FederationSpec, server: ServerProcess, clients: Path, log: Path, *, without: Collection[int] = ()
) -> Process:
    """All clients of a spec except some, each in its own process. The distiller is not included."""
    left_out = (*without, *range(spec.clients, spec.shards))
    return Process(
        [
            *(program("puf-client"), "fleet", "--clients", str(spec.shards), "--server", server.address),
            *("--state", str(clients), *data_flags(spec), *_share_of_memory(spec), "--log-format", "json"),
            *("--log-dir", str(log.parent / log.stem)),
            *(word for shard in left_out for word in ("--except", str(shard))),
        ],
        log,
    )


def distiller(spec: FederationSpec, server: ServerProcess, clients: Path, log: Path) -> Process:
    """The client that provides the public shard."""
    flags = [
        "--state",
        str(clients),
        *client_flags(spec, spec.clients),
        *_share_of_memory(spec),
        "--log-format",
        "json",
    ]
    return Process([program("puf-client"), "run", "--server", server.address, *flags], log)


def unlearn_command(spec: FederationSpec, server: ServerProcess, clients: Path, shard: int, *more: str) -> list[str]:
    """The command with which this client asks to be forgotten."""
    return [
        *(program("puf-client"), "--unlearn", "--yes", "--server", server.address, "--state", str(clients)),
        *(*client_flags(spec, shard), *_share_of_memory(spec), "--receipt-dir", str(clients.parent), *more),
    ]


def _share_of_memory(spec: FederationSpec) -> list[str]:
    """On GPUs: an equal share for each client's worker and request, and as much for the process that measures.

    Federations that run at the same time divide the memory.
    """
    return [] if spec.device == "cpu" else ["--memory-fraction", f"{1 / spec.sharing / (2 * spec.shards + 1):.6f}"]
