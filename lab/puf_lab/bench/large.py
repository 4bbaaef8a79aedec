"""A round with the bytes of GPT-2 Large: six clients, no training. Memory must not depend on the model."""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil

from puf_common.errors import PufError
from puf_lab.bench.federation import init_state, peak_memory
from puf_lab.bench.report import Report, spread
from puf_lab.federations.processes import Process, ServerProcess, wait_until

_PARAMETERS = 774_030_080
_CLIENTS = 6
_SECONDS = 1800.0
# NVIDIA FLARE's published figures: seconds of a round on 32 virtual cores, and bytes of server memory.
_FLARE_SECONDS = 154.0
_FLARE_MEMORY_MB = 88_046


def large(report: Report, scratch: Path, repeats: int) -> None:
    rounds = max(1, repeats // 2)
    state = init_state(scratch, _PARAMETERS, "--plan-start-clients", str(_CLIENTS))
    (scratch / "first.safetensors").unlink()
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(state, scratch / "server.log"))
        clients = [
            stack.enter_context(
                Process(
                    [sys.executable, "-m", "puf_lab.bench.streaming_client", server.address, f"client-{i}"],
                    scratch / f"client-{i}.log",
                )
            )
            for i in range(_CLIENTS)
        ]
        wait_until(lambda: server.control.status().clients_alive == _CLIENTS, _SECONDS, server, *clients)
        times = []
        for _ in range(rounds):
            before = server.control.status().position.round
            server.control.extend(1)
            wait_until(
                lambda: server.control.status().position.round > before,  # noqa: B023
                _SECONDS,
                server,
                *clients,
                poll=0.5,
            )
            last = server.control.rounds(limit=1)[0]
            if last.received != _CLIENTS:
                raise PufError(f"{last.received} of {_CLIENTS} clients answered")
            times.append(last.committed_at - last.opened_at)
            report.console.print(f"  round {last.number}: {times[-1]:.1f} s")
        memory = peak_memory(server.pid)
        client_memory = max(peak_memory(c.pid) for c in clients)
        used = psutil.Process(server.pid).cpu_times()
    seconds = statistics.median(times)
    size = f"{_CLIENTS} clients, {_PARAMETERS * 4 / 1e9:.1f} GB model"
    report.at_most("large_model_server_memory", memory, 300, "MB", f"{size}; FLARE publishes {_FLARE_MEMORY_MB:,} MB")
    report.at_most("large_model_client_memory", client_memory, None, "MB", "a client that holds one chunk at a time")
    report.at_most(
        "large_model_round", seconds, None, "s", f"{spread(times)} s; FLARE publishes {_FLARE_SECONDS:.0f} s"
    )
    report.details["large_model"] = {
        "parameters": _PARAMETERS,
        "clients": _CLIENTS,
        "round_seconds": times,
        "server_memory_mb": memory,
        "client_memory_mb": client_memory,
        "server_processor_seconds": used.user + used.system,
        "flare_seconds": _FLARE_SECONDS,
    }
