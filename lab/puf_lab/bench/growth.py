"""Growth of time and memory with clients, parameters and rounds."""

from __future__ import annotations

import statistics
from pathlib import Path

import psutil

from puf_lab.bench.federation import PARAMETERS, Federation
from puf_lab.bench.report import Report

_CLIENTS = (1, 10, 50, 100)
_SIZES = (1_000_000, PARAMETERS, 100_000_000)
# Each client holds a model and an update. More clients would not fit into memory at the largest size.
_CLIENTS_AT_EACH_SIZE = 4
_ROUNDS = 200
# A federation of one client must be allowed explicitly.
_ALONE = ("--plan-min-clients", "1")


def growth(report: Report, scratch: Path, repeats: int) -> None:
    clients = [_point(report, scratch / f"c{n}", n, PARAMETERS, repeats) for n in _CLIENTS]
    sizes = [
        _point(report, scratch / f"p{p}", _CLIENTS_AT_EACH_SIZE, p, 1 if p > PARAMETERS else repeats) for p in _SIZES
    ]
    report.at_most("server_memory_100_clients", clients[-1][1], 420, "MB", f"{_CLIENTS[-1]} clients in 10 processes")
    note = "goal: 20 bytes a parameter + 100 MB"
    report.at_most("server_memory_100M_parameters", sizes[-1][1], 20 * _SIZES[-1] / 1e6 + 100, "MB", note)
    report.details["growth"] = {
        "clients": list(_CLIENTS),
        "clients_seconds": [t for t, _ in clients],
        "clients_memory_mb": [m for _, m in clients],
        "parameters": list(_SIZES),
        "parameters_seconds": [t for t, _ in sizes],
        "parameters_memory_mb": [m for _, m in sizes],
    }
    _many_rounds(report, scratch / "rounds")


def _point(report: Report, scratch: Path, clients: int, parameters: int, repeats: int) -> tuple[float, float]:
    with Federation(scratch, clients, parameters, _ALONE) as federation:
        federation.round()
        seconds = statistics.median(federation.round() for _ in range(repeats))
        memory = federation.peak_memory()
    report.console.print(f"  {clients} clients, {parameters:,} parameters: {seconds:.2f} s a round, {memory:.0f} MB")
    return seconds, memory


def _many_rounds(report: Report, scratch: Path) -> None:
    """Resident memory over many rounds of a model of a megabyte."""
    seen: list[float] = []
    with Federation(scratch, 4, 250_000) as federation:
        for done in range(20, _ROUNDS + 1, 20):
            federation.control.extend(20)
            federation.wait(done)
            seen.append(psutil.Process(federation.server.pid).memory_info().rss / 1e6)
        peak = federation.peak_memory()
    note = f"{seen[1]:.0f} MB, then {seen[-1]:.0f} MB; peak {peak:.0f} MB"
    report.at_most("memory_after_200_rounds_to_40", seen[-1] / seen[1], 1.1, note=note)
    report.details["growth"] |= {"rounds": list(range(20, _ROUNDS + 1, 20)), "rounds_memory_mb": seen}
