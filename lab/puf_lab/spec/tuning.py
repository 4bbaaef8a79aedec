"""What `puf-lab tune` sweeps, and on which runs values were chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from pydantic import Field, field_validator

from puf_common.errors import UsageError
from puf_lab.spec.federation import Part

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


class TunedOn(Part):
    """The runs on which values of methods were chosen. They must not be reported."""

    seeds: tuple[int, ...]
    targets: tuple[tuple[int, ...], ...]

    def overlap(self, seeds: Sequence[int], targets: Iterable[tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
        """Seeds and targets that are in both."""
        mine = {(seed, each) for seed in self.seeds for each in self.targets}
        return sorted(mine & {(seed, each) for seed in seeds for each in targets})


def toml_of(chosen: Mapping[str, Mapping[str, str]], tuned_on: TunedOn, comments: Sequence[str]) -> str:
    """A setting file with the chosen values, to be named in `base`."""
    lines = [f"# {comment}" for comment in comments]
    targets = [list(each) for each in tuned_on.targets]
    lines += ["", "[tuned_on]", f"seeds = {list(tuned_on.seeds)}", f"targets = {targets}", "", "[defaults]"]
    for method, options in chosen.items():
        pairs = ", ".join(f"{key} = {_toml(value)}" for key, value in options.items())
        lines.append(f"{method} = {{ {pairs} }}" if pairs else f"{method} = {{}}")
    return "\n".join(lines) + "\n"


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _toml(value: str) -> str:
    """A value of an option as TOML: a number or a truth value where it is one."""
    if value in ("true", "false"):
        return value
    try:
        float(value)
    except ValueError:
        return f'"{value}"'
    return value
