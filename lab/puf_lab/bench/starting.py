"""Time until `--help` is printed."""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path

from puf_lab.bench.report import Report, seconds, spread
from puf_lab.federations.processes import program


def starting(report: Report, scratch: Path, repeats: int) -> None:
    for name in ("puf-client", "puf-server"):
        command = [program(name), "--help"]
        times = [
            seconds(lambda: subprocess.run(command, check=True, capture_output=True))  # noqa: B023, S603
            for _ in range(max(5, repeats))
        ]
        report.at_most(f"{name.replace('-', '_')}_help", statistics.median(times), 0.3, "s", spread(times))
