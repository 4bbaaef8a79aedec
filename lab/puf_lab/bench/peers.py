"""What the comparison with other frameworks shares: their environment, the time limit, and their memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import psutil

from puf_common.errors import PufError
from puf_lab.bench.federation import peak_memory
from puf_lab.bench.report import Report, spread
from puf_lab.federations.processes import Process, wait_until

CLIENTS = 10


def environment(directory: Path, *packages: str) -> Path:
    """Directory of the programs of an environment with these packages. The first call creates it."""
    programs = directory / "bin"
    if not (directory / "ready").exists():
        for command in (
            [sys.executable, "-m", "venv", str(directory)],
            [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
                raise PufError(f"{' '.join(packages)} could not be installed: {reason}")
        (directory / "ready").touch()
    return programs


def wait_for_times(path: Path, rounds: int, seconds: float, process: Process) -> tuple[list[float], float]:
    """Seconds of each round, as the peer writes them to the file, and the peak memory of its server in megabytes."""
    times: list[float] = []
    memory = 0.0

    def finished() -> bool:
        nonlocal memory
        memory = max(memory, _family_memory(process.pid))
        try:
            times[:] = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            return False
        return len(times) >= rounds

    wait_until(finished, seconds, process, poll=0.25)
    return times, memory


def _family_memory(pid: int) -> float:
    """Sum of the peak memory of a process and its children. A peer's server consists of several processes."""
    total = 0.0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        try:
            total += peak_memory(process.pid)
        except (OSError, PufError):
            continue  # the child has ended
    return total


def rounds_of_puf(report: Report, part: str) -> list[float]:
    """Seconds of PUF's rounds, from this run or an earlier one."""
    ours: list[float] | None = report.details.get("round_seconds", {}).get("puf")
    if not ours:
        raise PufError(f"{part} is compared with the part transfer: measure both, --only transfer,{part}")
    return ours


def compare(report: Report, peer: str, times: list[float], ours: list[float], goal: float, memory: str) -> None:
    """Adds the figure: how many times as long the peer's round takes as PUF's."""
    name = peer.lower().replace(" ", "_")
    report.console.print(f"  {peer}: {', '.join(f'{t:.1f}' for t in times)} s a round, {memory}")
    ratio = statistics.median(times) / statistics.median(ours)
    report.at_least(f"{name}_to_round", ratio, goal, note=f"{peer} {spread(times)} s, {memory}")
