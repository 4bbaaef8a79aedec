"""Rows of the paper's tables with their known errors, for comparison with measured results."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

# Metrics of the tables. Each has the rounding of three printed numbers, each by half a unit of its last digit.
METRICS = {"forget": 0.15, "song": 0.15, "yeom": 0.15, "loss": 0.015}


@dataclass(frozen=True)
class Row:
    """One method in one setting. Values are per cent (except loss), None if the paper has no value."""

    setting: str
    method: str
    values: Mapping[str, float | None]

    def __getitem__(self, column: str) -> float | None:
        return self.values[column]


@dataclass(frozen=True)
class Erratum:
    setting: str
    method: str
    columns: tuple[str, ...]
    text: str
    correct: Mapping[str, float]

    def concerns(self, row: Row, column: str) -> bool:
        return self.setting in ("*", row.setting) and self.method in ("*", row.method) and column in self.columns


@cache
def rows() -> tuple[Row, ...]:
    text = files("puf_lab.paper").joinpath("tables.csv").read_text()
    found = []
    for line in csv.DictReader(text.splitlines()):
        setting, method = line.pop("setting"), line.pop("method")
        found.append(Row(setting, method, {k: float(v) if v else None for k, v in line.items()}))
    return tuple(found)


@cache
def errata() -> tuple[Erratum, ...]:
    table = tomllib.loads(files("puf_lab.paper").joinpath("errata.toml").read_text())
    return tuple(
        Erratum(e["setting"], e["method"], tuple(e["columns"]), e["text"], e.get("correct", {}))
        for e in table["erratum"]
    )


def impossible() -> Iterator[tuple[Row, str, float, float]]:
    """(row, metric, printed, least): rows with a mean |difference| to Retrain below the difference of means."""
    retrained = {row.setting: row for row in rows() if row.method == "Retrain"}
    for row in rows():
        for metric, rounding in METRICS.items():
            printed, here, there = row[f"{metric}_delta"], row[metric], retrained[row.setting][metric]
            if printed is not None and here is not None and there is not None:
                least = abs(here - there)
                if printed < least - rounding:
                    yield row, metric, printed, least
