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

_CLIENTS = 1000
_IN_ROUND = 100
_SECONDS = 30.0


def crowd(report: Report, scratch: Path, repeats: int) -> None:
    flags = ["--plan-start-clients", str(_CLIENTS), "--plan-participation", str(_IN_ROUND / _CLIENTS)]
    state = init_state(scratch, 1000, *flags)
    server = ServerProcess(state, scratch / "server.log")
    command = [sys.executable, "-m", "puf_lab.bench.light_clients", server.address, str(_CLIENTS), str(_SECONDS)]
    with server, Process(command, scratch / "light.log") as light:
        control = server.control
        wait_until(lambda: control.status().clients_alive == _CLIENTS, 120, server, light)
        times = []
        for _ in range(max(3, repeats)):
            before = control.status().position.round
            control.extend(1)
            # The server's clock measures. Polling more often would add load that a federation does not have.
            wait_until(lambda: control.status().position.round > before, 60, server, light, poll=0.25)  # noqa: B023
            last = control.rounds(limit=1)[0]
            if last.received != _IN_ROUND:
                raise PufError(f"{last.received} of {_IN_ROUND} light clients answered")
            times.append(last.committed_at - last.opened_at)
        light.wait(_SECONDS + 120)
        counts = json.loads(light.tail(1))
    errors = sum(counts["errors"].values()) + sum('"level": "error"' in s for s in server.log.read_text().splitlines())
    report.at_most("light_clients_errors", errors, 0, "", f"{_CLIENTS} clients, {counts['beats']} heartbeats")
    note = f"{spread(times)} s, {_IN_ROUND} in a round"
    report.at_most("light_clients_round_overhead", statistics.median(times), 1.0, "s", note)
    report.details["light_clients"] = {**counts, "round_seconds": times}
