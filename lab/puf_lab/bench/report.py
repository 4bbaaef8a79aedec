"""Figures of the bench with their goals, as a table and as `result.json`."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from puf_lab.reporting.terminal import new_console


@dataclass(frozen=True)
class Figure:
    """One measured number. Without a goal it is for information."""

    name: str
    value: float
    unit: str = "x"
    goal: float | None = None
    at_most: bool = True
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal


def spread(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.3g} ({min(times):.3g} to {max(times):.3g})"


def seconds(work: Callable[[], object]) -> float:
    """Duration of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@dataclass
class Report:
    figures: dict[str, Figure] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    console: Console = field(default_factory=new_console)

    def at_most(self, name: str, value: float, goal: float | None, unit: str = "x", note: str = "") -> None:
        self.figures[name] = Figure(name, round(value, 4), unit, goal, True, note)

    def at_least(self, name: str, value: float, goal: float | None, unit: str = "x", note: str = "") -> None:
        self.figures[name] = Figure(name, round(value, 4), unit, goal, False, note)

    def write(self, path: Path) -> None:
        """Writes the file. Figures of an earlier run stay if this run did not measure them."""
        old: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        figures = old.get("figures", {}) | {name: {**asdict(f), "met": f.met} for name, f in self.figures.items()}
        result = {
            "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
            "figures": {name: {k: v for k, v in f.items() if k != "name"} for name, f in figures.items()},
            "details": old.get("details", {}) | self.details,
            "failures": self.failures,
        }
        path.write_text(json.dumps(result, indent=1) + "\n")

    def show(self) -> None:
        table = Table("figure", "measured", "goal", "", "how")
        for f in self.figures.values():
            goal = "–" if f.goal is None else f"{'≤' if f.at_most else '≥'} {f.goal:g}"
            reached = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[f.met]
            table.add_row(f.name.replace("_", " "), f"{f.value:.4g} {f.unit}", goal, reached, f.note)
        self.console.print(table)
        for part, why in self.failures.items():
            self.console.print(f"[red]{part} was not measured:[/] {why}")
