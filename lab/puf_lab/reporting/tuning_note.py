"""Which methods had their values chosen on other runs, and what the sweep says about those values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from puf_lab.spec.settings_files import load_experiment, names
from puf_lab.spec.tuning import Remarks


def tuning_note(experiment: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """The sentences for tables. `labels` are those of the compared methods by name; Natural has nothing to choose."""
    named = {name: label for name, label in labels.items() if name != "natural"}
    tuned_on = experiment.get("tuned_on")
    if not tuned_on:
        return "No values were chosen on other runs. A method may be better with other values than with these."
    remarks, swept = _remarks(experiment), _swept(experiment, named)
    tuned = [n for n in swept if n not in remarks or remarks[n].recovered]
    failed = [n for n in swept if n not in tuned]
    seeds = _and([str(seed) for seed in tuned_on["seeds"]])
    clients = _and(["+".join(map(str, target)) for target in tuned_on["targets"]])
    found = [
        f"Values chosen on runs that are not in this table (seeds {seeds}, targets {clients}): {_list(tuned, named)}."
    ]
    edges = [f"{named[n]} ({sides})" for n in tuned if n in remarks and (sides := _sides(remarks[n]))]
    if edges:
        found.append(f"At the edge of the values tried, so a better one may lie outside: {', '.join(edges)}.")
    partly = [f"{named[n]} ({k} of {m})" for n in tuned if n in remarks for k, m in _crossed(remarks[n])]
    if partly:
        found.append(f"Not all runs with the chosen values recovered in the sweep: {', '.join(partly)}.")
    if failed:
        found.append(f"No configuration recovered in the sweep, so no conclusion about them: {_list(failed, named)}.")
    left = [n for n in named if n not in swept]
    if left:
        found.append(f"Not tuned, so no conclusion about them: {_list(left, named)}.")
    return " ".join(found)


def supported(experiment: Mapping[str, Any], methods: Iterable[str]) -> frozenset[str]:
    """The methods whose values a sweep chose and in which some configuration recovered. Natural has nothing to choose.

    Runs support no conclusion about the others: with other values they may be better.
    """
    named = frozenset(methods)
    if not experiment.get("tuned_on"):
        return named & {"natural"}
    remarks = _remarks(experiment)
    swept = [n for n in _swept(experiment, named) if n not in remarks or remarks[n].recovered]
    return frozenset(swept) | (named & {"natural"})


def _swept(experiment: Mapping[str, Any], methods: Iterable[str]) -> list[str]:
    """The methods whose defaults came from the sweep."""
    grid, defaults = (experiment.get("tuning") or {}).get("grid", {}), experiment["defaults"]
    remarks = _remarks(experiment)
    swept = [n for n in methods if n in grid and grid[n].keys() <= defaults.get(n, {}).keys()]
    return [n for n in swept if n in remarks or not remarks]


def _remarks(experiment: Mapping[str, Any]) -> dict[str, Remarks]:
    """The remarks of the sweep by method.

    Rows of older versions have none. They take those of the built-in setting of that name, if it has the same values
    from the same runs.
    """
    tuned_on, name = experiment["tuned_on"], experiment["name"]
    found = tuned_on.get("remarks", {})
    if not found and name in names():
        built_in = load_experiment(name, profile=experiment["profile"]).described()
        theirs = built_in["tuned_on"] or {"remarks": {}}
        pairs = [(theirs.get(key), tuned_on[key]) for key in ("seeds", "targets")]
        pairs += [(built_in["defaults"].get(each), experiment["defaults"].get(each)) for each in theirs["remarks"]]
        found = theirs["remarks"] if all(here == there for here, there in pairs) else {}
    return {method: Remarks.model_validate(each) for method, each in found.items()}


def _crossed(remarks: Remarks) -> list[tuple[int, int]]:
    return [remarks.chosen_recovered] if remarks.chosen_recovered else []


def _sides(remarks: Remarks) -> str:
    named = (("smallest", remarks.smallest), ("largest", remarks.largest))
    return "; ".join(f"{side} {_and(options)}" for side, options in named if options)


def _list(names: Sequence[str], labels: Mapping[str, str]) -> str:
    return ", ".join(labels[name] for name in names) or "none"


def _and(words: Sequence[str]) -> str:
    return " and ".join(words)
