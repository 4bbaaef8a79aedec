"""Several server processes over PostgreSQL, compared with one process over SQLite."""

from __future__ import annotations

import json
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from puf_common.errors import PufError
from puf_lab.bench.crowd import IN_ROUND, light_clients, time_rounds
from puf_lab.bench.federation import PARAMETERS, Federation, Serving, cpu_times, init_state
from puf_lab.bench.report import Report, spread
from puf_lab.federations.postgres import Postgres, programs
from puf_lab.federations.processes import ServerProcess, wait_until

_CLIENTS = 10
# Rounds of one kind that are measured in a row, as in the other parts.
_IN_A_ROW = 3
_SERVERS = 3
_LIGHT_CLIENTS = (10, 100, 1000)
_HEARTBEATS_SECONDS = 20.0


def servers(report: Report, scratch: Path, repeats: int) -> None:
    found = programs()
    if found is None:
        raise PufError("PostgreSQL is not installed: install Debian's package `postgresql` to measure this part")
    with Postgres(found) as postgres:
        _rounds(report, scratch, repeats, postgres)
        for clients in _LIGHT_CLIENTS:
            _light_clients(report, scratch / f"light-{clients}", clients, postgres)


def _rounds(report: Report, scratch: Path, repeats: int, postgres: Postgres) -> None:
    """The same round without training: SQLite, and PostgreSQL with one and with two processes, in turns."""
    kinds = {
        "sqlite": Serving(),
        "postgres_1": Serving(postgres.address()),
        "postgres_2": Serving(postgres.address(), workers=2),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    computed: dict[str, dict[str, float]] = {kind: {"server": 0.0, "clients": 0.0, "database": 0.0} for kind in kinds}
    with ExitStack() as stack:
        running = {
            kind: stack.enter_context(Federation(scratch / kind, _CLIENTS, PARAMETERS, serving=serving))
            for kind, serving in kinds.items()
        }
        for federation in running.values():
            federation.round()
        for turn in range(repeats):
            for kind, federation in running.items():
                before = _spent(federation, postgres)
                times[kind] += [federation.round() for _ in range(_IN_A_ROW)]
                for side, spent in _spent(federation, postgres).items():
                    computed[kind][side] += spent - before[side]
            last = ", ".join(f"{kind} {spread(measured[-_IN_A_ROW:])} s" for kind, measured in times.items())
            report.console.print(f"  turn {turn + 1}: {last}")
    rounds = repeats * _IN_A_ROW
    spent_in_round = {
        kind: {side: round(spent / rounds, 3) for side, spent in sides.items()} for kind, sides in computed.items()
    }
    report.details["servers"] = {"round_seconds": times, "round_cpu_seconds": spent_in_round}
    median = {kind: statistics.median(measured) for kind, measured in times.items()}
    note = f"PostgreSQL {spread(times['postgres_1'])} s, SQLite {spread(times['sqlite'])} s"
    report.at_most("postgres_to_sqlite_round", median["postgres_1"] / median["sqlite"], 1.15, note=note)
    note = f"two processes {spread(times['postgres_2'])} s; processor seconds of a round: {spent_in_round}"
    report.at_most("two_workers_to_one_round", median["postgres_2"] / median["postgres_1"], None, note=note)
    gigabytes = 2 * 4 * PARAMETERS * _CLIENTS / 1e9
    cost = (spent_in_round["postgres_2"]["server"] + spent_in_round["postgres_2"]["database"]) / gigabytes
    note = f"{1 / cost:.2f} GB/s for each core that only serves"
    report.at_most("server_processor_seconds_per_gigabyte", cost, None, "s", note)


def _spent(federation: Federation, postgres: Postgres) -> dict[str, float]:
    sides = federation.cpu_seconds()
    return {
        "server": sides["server_user"] + sides["server_system"],
        "clients": sides["clients_user"] + sides["clients_system"],
        "database": _seconds(postgres.pid),
    }


def _seconds(pid: int) -> float:
    return float(sum(spent.user + spent.system for spent in cpu_times(pid)))


def _light_clients(report: Report, scratch: Path, clients: int, postgres: Postgres) -> None:
    """Light clients of three servers: rounds without errors, and the cost of their heartbeats."""
    address = postgres.address()
    in_round = min(clients, IN_ROUND)
    flags = ["--plan-start-clients", str(clients), "--plan-participation", str(in_round / clients)]
    state = init_state(scratch, 1000, *flags, database=address)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(ServerProcess(state, scratch / f"server-{i}.log", database=address))
            for i in range(_SERVERS)
        ]
        addresses = ",".join(server.address for server in processes)
        light = stack.enter_context(light_clients(addresses, clients, _HEARTBEATS_SECONDS + 30, scratch))
        control = processes[0].control
        wait_until(lambda: control.status().clients_alive == clients, 180, *processes, light)
        times = time_rounds(control, 3, in_round, *processes, light)
        begun, before = time.monotonic(), [_seconds(p) for p in (postgres.pid, *(s.pid for s in processes))]
        # Nothing but heartbeats happens now.
        time.sleep(_HEARTBEATS_SECONDS)
        spent = sum(_seconds(p) for p in (postgres.pid, *(s.pid for s in processes))) - sum(before)
        cores = spent / (time.monotonic() - begun)
        light.wait(_HEARTBEATS_SECONDS + 180)
        counts = json.loads(light.tail(1))
        lines = [line for server in processes for line in server.log.read_text().splitlines()]
    errors = sum(counts["errors"].values()) + sum('"level": "error"' in line for line in lines)
    beats = f"{counts['beats']} heartbeats, slowest {counts['slowest_beat']:.2f} s; rounds {spread(times)} s"
    report.at_most(f"three_servers_{clients}_light_clients_errors", errors, 0, "", beats)
    if clients == max(_LIGHT_CLIENTS):
        note = "processor seconds of the servers and the database in a second"
        report.at_most("three_servers_heartbeats", cores, 1.0, "cores", f"{note}, {clients} clients")
    report.details[f"three_servers_{clients}"] = {**counts, "round_seconds": times, "heartbeat_cores": cores}
