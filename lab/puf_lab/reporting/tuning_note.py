"""Which methods had their values chosen on other runs. Of the others a table supports no conclusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def tuning_note(experiment: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """The sentence for tables. `labels` are those of the compared methods by name; Natural has nothing to choose."""
    named = {name: label for name, label in labels.items() if name != "natural"}
    tuned_on, grid = experiment.get("tuned_on"), (experiment.get("tuning") or {}).get("grid", {})
    if not tuned_on:
        return "No values were chosen on other runs. A method may be better with other values than with these."
    defaults = experiment["defaults"]
    tuned = [n for n in named if n in grid and grid[n].keys() <= defaults.get(n, {}).keys()]
    seeds = _and([str(seed) for seed in tuned_on["seeds"]])
    clients = _and(["+".join(map(str, target)) for target in tuned_on["targets"]])
    text = (
        f"Values chosen on runs that are not in this table (seeds {seeds}, targets {clients}): {_list(tuned, named)}."
    )
    left = [n for n in named if n not in tuned]
    return f"{text} Not tuned, so no conclusion about them: {_list(left, named)}." if left else text


def _list(names: Sequence[str], labels: Mapping[str, str]) -> str:
    return ", ".join(labels[name] for name in names) or "none"


def _and(words: Sequence[str]) -> str:
    return " and ".join(words)
