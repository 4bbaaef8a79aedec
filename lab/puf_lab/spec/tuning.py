"""What `puf-lab tune` sweeps, and on which runs values were chosen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from pydantic import Field, field_validator

from puf_common.errors import UsageError
from puf_lab.spec.federation import Part
from puf_lab.spec.variants import limits

Value = bool | int | float | str


class Tuning(Part):
    """The sweep of a setting. Its seeds are not reported, so its data, weights and targets' models are others, too."""

    seeds: tuple[int, ...] = Field((101,), min_length=1)
    targets: tuple[tuple[int, ...], ...] = ()
    """Clients that are forgotten in the sweep. By default those of the setting."""
    grid: dict[str, dict[str, tuple[Value, ...]]] = Field(default_factory=dict)
    """Values by method and option. All combinations are run."""

    @field_validator("targets", mode="before")
    @classmethod
    def _single_clients(cls, value: Any) -> Any:
        """A number is a target of one client, as in the targets of a setting."""
        return [[each] if isinstance(each, int) else each for each in value] if isinstance(value, list) else value

    def configurations(self, method: str) -> list[str]:
        """The method with every combination of values, as variants are written."""
        if method not in self.grid:
            raise UsageError(f"the setting has no grid for {method}; add [tuning.grid.{method}] with lists of values")
        options = self.grid[method]
        return [
            " ".join([method, *(f"{key}={_text(value)}" for key, value in zip(options, values, strict=True))])
            for values in product(*options.values())
        ]


class Remarks(Part):
    """What a sweep says about the values that it chose for a method."""

    recovered: bool = True
    """Whether any configuration recovered. Otherwise the sweep supports no conclusion about the method."""
    chosen_recovered: tuple[int, int] | None = None
    """How many runs with the chosen values recovered, and how many there were. None if all did."""
    smallest: tuple[str, ...] = ()
    """Options whose value is the smallest that was tried. A better one may lie below."""
    largest: tuple[str, ...] = ()
    """Options whose value is the largest that was tried. A better one may lie above."""


class TunedOn(Part):
    """The runs on which values of methods were chosen. They must not be reported."""

    seeds: tuple[int, ...]
    targets: tuple[tuple[int, ...], ...]
    data_seed: int | None = None
    """Seed of the data, if it was not the seed of each run."""
    remarks: dict[str, Remarks] = Field(default_factory=dict)
    """One entry for each method of the sweep. Files of older versions have none."""

    def overlap(
        self, seeds: Sequence[int], targets: Iterable[tuple[int, ...]], data_seed: int | None = None
    ) -> list[str]:
        """What is in both, in words: seeds of training with their targets, then seeds of the data with theirs."""
        both = sorted(set(self.targets) & set(targets))
        pairs = [
            ("seed", set(self.seeds) & set(seeds)),
            ("the data of seed", _data_seeds(self.seeds, self.data_seed) & _data_seeds(seeds, data_seed)),
        ]
        return [f"{what} {n} with target {list(each)}" for what, found in pairs for n in sorted(found) for each in both]


def _data_seeds(seeds: Sequence[int], data_seed: int | None) -> set[int]:
    return set(seeds) if data_seed is None else {data_seed}


def remarks_of(method: str, chosen: Mapping[str, str], tried: Sequence[Mapping[str, str]]) -> Remarks:
    """Where the chosen values lie among those of all configurations. Only numbers are ordered and have an edge.

    A value that the option itself does not let pass is no edge: beyond it there is nothing to try.
    """
    sides: dict[str, list[str]] = {"smallest": [], "largest": []}
    for option, text in chosen.items():
        values = {_number(options[option]) for options in tried}
        numbers = {value for value in values if value is not None}
        value = _number(text)
        if value is None or numbers != values or len(numbers) < 2 or value in limits(method, option):
            continue
        if value == min(numbers):
            sides["smallest"].append(option)
        elif value == max(numbers):
            sides["largest"].append(option)
    return Remarks(smallest=tuple(sides["smallest"]), largest=tuple(sides["largest"]))


def toml_of(chosen: Mapping[str, Mapping[str, str]], tuned_on: TunedOn, comment: str) -> str:
    """A setting file with the chosen values, to be named in `base`."""
    targets = [list(each) for each in tuned_on.targets]
    lines = [f"# {comment}", "", "[tuned_on]", f"seeds = {list(tuned_on.seeds)}", f"targets = {targets}"]
    if tuned_on.data_seed is not None:
        lines.append(f"data_seed = {tuned_on.data_seed}")
    lines += ["", "[tuned_on.remarks]"]
    for method, remarks in tuned_on.remarks.items():
        stated = remarks.model_dump(mode="json", exclude_defaults=True)
        lines.append(_line(method, {key: json.dumps(value) for key, value in stated.items()}))
    lines += ["", "[defaults]"]
    for method, options in chosen.items():
        lines.append(_line(method, {key: _toml(value) for key, value in options.items()}))
    return "\n".join(lines) + "\n"


def _line(key: str, values: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{name} = {value}" for name, value in values.items())
    return f"{_toml_key(key)} = {{ {pairs} }}" if pairs else f"{_toml_key(key)} = {{}}"


def _toml_key(name: str) -> str:
    """A method's name as a key. Those of one's own code have a colon."""
    return name if name.replace("-", "").replace("_", "").isalnum() else json.dumps(name)


def _number(value: str) -> float | None:
    """The number of this text. Truth values and words are none."""
    try:
        return float(value)
    except ValueError:
        return None


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _toml(value: str) -> str:
    """A value of an option as TOML: a number or a truth value where it is one."""
    if value in ("true", "false"):
        return value
    return f'"{value}"' if _number(value) is None else value
