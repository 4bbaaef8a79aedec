"""`puf-lab bench`: a round without training, against raw TCP moving the same bytes between as many processes.

Both run in turns on this machine, so the ratio means something where the seconds do not. The server keeps all its
guarantees on: every update is spooled, hashed and checked before it is acknowledged.
"""

from __future__ import annotations

import json
import secrets
import socket
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from puf_client.session import connect
from puf_client.work import TrainTask
from puf_common.exits import Exit
from puf_common.logging import configure
from puf_common.manifest import UPDATE, Manifest, TensorSpec
from puf_common.modelfile import save
from puf_common.v1 import federation_pb2 as fed
from puf_lab import rawtcp
from puf_lab.processes import Process, ServerProcess, program, wait_until
from puf_server.control import Control

__all__ = ["run_bench"]


def run_bench(out: Path, *, clients: int, parameters: int, repeats: int) -> int:
    configure(level="error")
    console = Console(highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    payload = parameters * 4
    moved = 2 * payload * clients
    console.print(
        f"{clients} client processes, {parameters:,} parameters: {moved / 1e6:.0f} MB a round; {repeats} repeats"
    )
    tcp: list[float] = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        federation = stack.enter_context(_Federation(Path(scratch), clients, parameters))
        ours: list[float] = []
        for turn in range(repeats):
            tcp.append(_raw_tcp(clients, payload, Path(scratch)))
            ours.append(federation.round())
            console.print(f"turn {turn + 1}: raw TCP {tcp[-1]:.2f} s, PUF {ours[-1]:.2f} s")
        memory = federation.peak_memory()
    ratio = statistics.median(ours) / statistics.median(tcp)
    result = {
        "clients": clients,
        "parameters": parameters,
        "tensor_bytes_a_round": moved,
        "raw_tcp_seconds": tcp,
        "puf_seconds": ours,
        "puf_to_raw_tcp": round(ratio, 2),
        "server_peak_memory_mb": round(memory / 1e6, 1),
    }
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    table = Table("", "median s a round", "least", "most", "× raw TCP")
    for name, times in (("raw TCP", tcp), ("PUF", ours)):
        median = statistics.median(times)
        table.add_row(
            name, f"{median:.2f}", f"{min(times):.2f}", f"{max(times):.2f}", f"{median / statistics.median(tcp):.1f}"
        )
    console.print(table)
    console.print(f"server peak memory {memory / 1e6:.0f} MB; figures: {out / 'result.json'}")
    return Exit.OK


class _Federation:
    """A server process and clients that answer at once with an update of their own."""

    def __init__(self, scratch: Path, clients: int, parameters: int) -> None:
        manifest = Manifest((TensorSpec("weights", "f32", (parameters,)),))
        first = scratch / "first.safetensors"
        save(first, manifest, bytes(manifest.nbytes("model")), {})
        state = scratch / "state"
        flags = ["--state", str(state), "--model", "bench", "--model-file", str(first), "--plan-rounds", "0"]
        flags += ["--plan-start-clients", str(clients), "--plan-evaluate-every", "0", "--plan-keep-models", "1"]
        with Process([program("puf-server"), "init", *flags], scratch / "init.log") as making:
            making.wait(120)
        self._stack = ExitStack()
        self._server = self._stack.enter_context(ServerProcess(state, scratch / "server.log"))
        assert isinstance(self._server, ServerProcess)
        command = [sys.executable, "-m", "puf_lab.bench", self._server.address]
        self._clients = [
            self._stack.enter_context(Process([*command, f"client-{i}"], scratch / f"client-{i}.log"))
            for i in range(clients)
        ]
        self._control: Control = self._server.control
        wait_until(lambda: self._control.status().clients_alive == clients, 120, self._server, *self._clients)

    def __enter__(self) -> _Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def round(self) -> float:
        """Seconds from the opening of one round to its commit, by the server's own clock."""
        before = self._control.status().position.round
        self._control.extend(1)
        wait_until(lambda: self._control.status().position.round > before, 600, self._server, *self._clients, poll=0.02)
        last = self._control.rounds(limit=1)[0]
        return last.committed_at - last.opened_at

    def peak_memory(self) -> int:
        """The server's largest resident set, in bytes, as the kernel counts it."""
        for line in Path(f"/proc/{self._server.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0


def _client(address: str, name: str) -> int:
    """Fetches and submits, round after round, without training. Every client sends bytes of its own."""
    configure(level="error")
    with connect(address, name=name, samples=1) as session:
        noise = np.frombuffer(secrets.token_bytes(4096), np.uint8).astype("<f4") / 1e6
        size = session.manifest.nbytes(UPDATE) // 4
        update = np.resize(noise, size).tobytes()
        for work in session:
            if isinstance(work, TrainTask):
                work.submit(update)
        stopped = session.leave is not None and session.leave.reason == fed.LeaveOrder.REASON_STOPPED
        return Exit.OK if stopped else Exit.FAILURE


def _raw_tcp(clients: int, payload: int, scratch: Path) -> float:
    """Seconds in which as many processes fetch and send the same bytes over plain sockets."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "puf_lab.rawtcp", str(port), str(payload)]
        for i in range(clients):
            stack.enter_context(Process(command, scratch / f"tcp-{i}.log"))
        connections = [listener.accept()[0] for _ in range(clients)]
        started = time.perf_counter()
        threads = [threading.Thread(target=rawtcp.serve, args=(c, payload)) for c in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(_client(*sys.argv[1:]))
