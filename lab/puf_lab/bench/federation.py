"""A server process and client processes that answer at once. Each round is timed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from puf_common.errors import PufError
from puf_common.tensors.chunks import CHUNK_BYTES
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_common.tensors.model_file import save
from puf_common.v1 import operator_pb2 as op
from puf_lab.bench.relay import Relay
from puf_lab.federations.processes import Process, ServerProcess, run_server_command, wait_until
from puf_server.cli.operator_client import OperatorClient

# ResNet-18 for 100 classes, as in the paper.
PARAMETERS = 11_220_132
_SECONDS = 300.0
# Number of client processes. More clients share them.
_PROCESSES = 10


@dataclass(frozen=True)
class Serving:
    """Where the state is and how many processes serve it. Without an address it is in SQLite."""

    database: str = ""
    workers: int = 1


_SQLITE = Serving()


def init_state(
    scratch: Path, parameters: int, *flags: str, weights: NDArray[np.float32] | None = None, database: str = ""
) -> Path:
    """The state directory of a new federation whose model is one tensor: zeros, or `weights`."""
    scratch.mkdir(parents=True, exist_ok=True)
    manifest = Manifest((TensorSpec("weights", "f32", (parameters,)),))
    first = scratch / "first.safetensors"
    save(first, manifest, _zeros(manifest.nbytes(MODEL)) if weights is None else weights.data.cast("B"), {})
    state = scratch / "state"
    plan = ["--plan-rounds", "0", "--plan-evaluate-every", "0", "--plan-keep-models", "1", *flags]
    place = ["--state", database, "--files", str(state)] if database else ["--state", str(state)]
    run_server_command("init", *place, "--model", "bench", "--model-file", str(first), *plan)
    return state


def _zeros(nbytes: int) -> Iterator[bytes]:
    """So many bytes in chunks: a model may be larger than memory."""
    chunk = bytes(CHUNK_BYTES)
    for offset in range(0, nbytes, CHUNK_BYTES):
        yield chunk[: nbytes - offset]


def peak_memory(pid: int) -> float:
    """The largest resident set of a process in megabytes, as the kernel counts it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise PufError("this system does not report the peak memory of a process")


def cpu_times(pid: int) -> list[Any]:
    """Processor times of a process and of its children."""
    process = psutil.Process(pid)
    return [p.cpu_times() for p in (process, *process.children(recursive=True))]


class Federation:
    """Server and clients as a context. With `mtls` all use certificates; with `relay` clients connect through it."""

    def __init__(
        self,
        scratch: Path,
        clients: int,
        parameters: int,
        flags: Sequence[str] = (),
        *,
        mtls: bool = False,
        relay: Relay | None = None,
        serving: Serving = _SQLITE,
    ) -> None:
        start = ["--plan-start-clients", str(clients), *flags]
        state = init_state(scratch, parameters, *start, database=serving.database)
        names = [f"client-{i}" for i in range(clients)]
        serve = _certificates(scratch / "certs", names) if mtls else ["--insecure"]
        if serving.workers > 1:
            serve += ["--workers", str(serving.workers)]
        self._stack = ExitStack()
        try:
            self.server = ServerProcess(state, scratch / "server.log", security=serve, database=serving.database)
            self._stack.enter_context(self.server)
            self.control = OperatorClient.of_state(state)
            address = self.server.address
            if relay is not None:
                relay.port, address = self.server.port, relay.address
            self.clients: dict[str, Process] = {}
            for group in (names[i::_PROCESSES] for i in range(min(clients, _PROCESSES))):
                words = [address, ",".join(group), *(_tls_files(scratch / "certs", group[0]) if mtls else [])]
                process = Process(
                    [sys.executable, "-m", "puf_lab.bench.echo_clients", *words], scratch / f"{group[0]}.log"
                )
                self.clients[group[0]] = self._stack.enter_context(process)
            wait_until(lambda: self.control.status().clients_alive == clients, _SECONDS, *self._alive())
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def round(self) -> float:
        """Seconds from the opening of one round to its commit, by the server's clock."""
        last = self._after(lambda: self.control.extend(1))
        return last.committed_at - last.opened_at

    def forget(self, name: str) -> op.RoundInfo:
        """The round in which a client is forgotten. Returns when the client's process has ended."""
        found = self._after(lambda: self.control.forget(name))
        self.clients.pop(name).wait(60)
        return found

    def wait(self, rounds: int) -> None:
        wait_until(lambda: self.control.status().position.round >= rounds, _SECONDS, *self._alive(), poll=0.02)

    def peak_memory(self) -> float:
        return peak_memory(self.server.pid)

    def cpu_seconds(self) -> dict[str, float]:
        """Processor seconds of server and clients so far, in user and system mode."""
        found: dict[str, float] = {}
        for side, processes in (("server", [self.server]), ("clients", [*self.clients.values()])):
            times = [t for p in processes for t in cpu_times(p.pid)]
            found |= {f"{side}_user": sum(t.user for t in times), f"{side}_system": sum(t.system for t in times)}
        return found

    def _after(self, change: Callable[[], object]) -> op.RoundInfo:
        before = self.control.status().position.round
        change()
        self.wait(before + 1)
        return next(r for r in self.control.rounds(limit=3) if r.number == before + 1)

    def _alive(self) -> list[Process]:
        return [self.server, *self.clients.values()]


def _certificates(directory: Path, names: Sequence[str]) -> list[str]:
    run_server_command("certs", "init", "--dir", str(directory))
    run_server_command("certs", "server", "--dir", str(directory), "--name", "127.0.0.1")
    for name in names:
        run_server_command("certs", "client", name, "--dir", str(directory))
    files = {"--tls-cert": "server.crt", "--tls-key": "server.key", "--client-ca": "ca.crt"}
    return [word for flag, file in files.items() for word in (flag, str(directory / file))]


def _tls_files(directory: Path, name: str) -> list[str]:
    return [str(directory / file) for file in ("ca.crt", f"clients/{name}.crt", f"clients/{name}.key")]
