"""A thousand light clients that send heartbeats. A hundred of them take part in each round of a tiny model."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from puf_common.errors import PufError
from puf_lab.bench.federation import init_state
from puf_lab.bench.report import Report, spread
from puf_lab.federations.processes import Process, ServerProcess, wait_until
from puf_server.cli.operator_client import OperatorClient

_CLIENTS = 1000
IN_ROUND = 100
_SECONDS = 30.0


def crowd(report: Report, scratch: Path, repeats: int) -> None:
    flags = ["--plan-start-clients", str(_CLIENTS), "--plan-participation", str(IN_ROUND / _CLIENTS)]
    state = init_state(scratch, 1000, *flags)
    server = ServerProcess(state, scratch / "server.log")
    with server, light_clients(server.address, _CLIENTS, _SECONDS, scratch) as light:
        wait_until(lambda: server.control.status().clients_alive == _CLIENTS, 120, server, light)
        times = time_rounds(server.control, max(3, repeats), IN_ROUND, server, light)
        light.wait(_SECONDS + 120)
        counts = json.loads(light.tail(1))
    errors = sum(counts["errors"].values()) + sum('"level": "error"' in s for s in server.log.read_text().splitlines())
    report.at_most("light_clients_errors", errors, 0, "", f"{_CLIENTS} clients, {counts['beats']} heartbeats")
    note = f"{spread(times)} s, {IN_ROUND} in a round"
    report.at_most("light_clients_round_overhead", statistics.median(times), 1.0, "s", note)
    report.details["light_clients"] = {**counts, "round_seconds": times}


def light_clients(addresses: str, clients: int, seconds: float, scratch: Path) -> Process:
    """One process with all clients. It ends so many seconds after the last one has joined."""
    command = [sys.executable, "-m", "puf_lab.bench.light_clients", addresses, str(clients), str(seconds)]
    return Process(command, scratch / "light.log")


def time_rounds(control: OperatorClient, rounds: int, in_round: int, *processes: Process) -> list[float]:
    """Seconds of each round, by the server's clock."""
    times = []
    for _ in range(rounds):
        before = control.status().position.round
        control.extend(1)
        # Polling more often would add load that a federation does not have.
        wait_until(lambda: control.status().position.round > before, 60, *processes, poll=0.25)  # noqa: B023
        last = control.rounds(limit=1)[0]
        if last.received != in_round:
            raise PufError(f"{last.received} of {in_round} light clients answered")
        times.append(last.committed_at - last.opened_at)
    return times
