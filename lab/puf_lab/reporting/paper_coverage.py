"""Which numbers of the paper's tables the built-in settings give, and why some have no setting."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from puf_lab.evaluation.metrics import names_for
from puf_lab.paper import tables
from puf_lab.reporting.formula_costs import formula_cost, shape_of
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.settings_files import load_experiment, names

_COSTS = ("communication", "computation", "storage")


@dataclass(frozen=True)
class Missing:
    setting: str
    method: str
    columns: tuple[str, ...]
    reason: str

    def concerns(self, row: tables.Row, column: str) -> bool:
        named = self.setting == row.setting and self.method in ("*", row.method)
        return named and ("*" in self.columns or column in self.columns)


@cache
def missing() -> tuple[Missing, ...]:
    table = tomllib.loads(files("puf_lab.paper").joinpath("coverage.toml").read_text())
    return tuple(Missing(m["setting"], m["method"], tuple(m["columns"]), m["reason"]) for m in table["missing"])


def numbers() -> Iterator[tuple[tables.Row, str, str | None]]:
    """Every number of the tables as row and column, with the full-size setting that gives it, or None."""
    found = {e.paper: e for e in map(load_experiment, full_size()) if e.name == e.paper}
    for row in tables.rows():
        experiment = found.get(row.setting)
        for column, value in row.values.items():
            if value is not None:
                given = experiment is not None and gives(experiment, row.method, column)
                yield row, column, row.setting if given else None


def full_size() -> list[str]:
    """Settings with the paper's network, data and rounds: those that state no difference from the paper."""
    return [name for name in names() if not load_experiment(name).note]


def gives(experiment: ExperimentSpec, method: str, column: str) -> bool:
    """Whether the setting gives the number in this row and column of the paper's table."""
    variants = {v.label(experiment.defaults): v for v in experiment.variants}
    if method not in variants:
        return False
    if column in _COSTS:
        # The sizes of model and data are known when they are loaded. Whether there is a figure does not depend on them.
        shape = shape_of(experiment.described(), parameters=1, samples_per_client=1)
        found = formula_cost(method, dict(variants[method].options), shape, recovery_rounds=1)
        return found is not None and getattr(found, column) > 0
    metric = column.removesuffix("_sd").removesuffix("_delta")
    return metric in names_for(experiment.federation.task)
