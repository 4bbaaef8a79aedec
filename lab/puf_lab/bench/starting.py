"""Time until `--help` is printed."""

from __future__ import annotations

import statistics
import subprocess
import time
from pathlib import Path

from puf_lab.bench.report import Report, spread
from puf_lab.federations.processes import program


def starting(report: Report, scratch: Path, repeats: int) -> None:
    for name in ("puf-client", "puf-server"):
        times = []
        for _ in range(max(5, repeats)):
            started = time.perf_counter()
            subprocess.run([program(name), "--help"], check=True, capture_output=True)  # noqa: S603
            times.append(time.perf_counter() - started)
        report.at_most(f"{name.replace('-', '_')}_help", statistics.median(times), 0.3, "s", spread(times))
