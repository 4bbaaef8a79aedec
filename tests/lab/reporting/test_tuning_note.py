"""The note under tables: which methods were tuned, where the sweep ended at an edge, and what it does not support."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from puf_lab.reporting.results import Results, read, write
from puf_lab.reporting.tuning_note import tuning_note
from puf_lab.spec.settings_files import load_experiment

LABELS = {"natural": "Natural", "not": "NoT", "pga": "PGA", "puf-regular": "PUF-Regular", "sifu": "SIFU"}
NOTE = (
    "Values chosen on runs that are not in this table (seeds 101 and 102, targets 0): PGA, PUF-Regular, SIFU. At the "
    "edge of the values tried, so a better one may lie outside: PGA (smallest stop_distance), SIFU (largest epsilon and "
    "sigma). Not all runs with the chosen values recovered in the sweep: PGA (1 of 2). "
    "No configuration recovered in the sweep, so no conclusion about them: NoT."
)


@pytest.fixture
def tuned() -> dict[str, Any]:
    """A setting with the remarks of a sweep of these methods."""
    experiment = load_experiment("digits-tuned").described()
    remarks = {
        "not": {"recovered": False},
        "pga": {"smallest": ["stop_distance"], "chosen_recovered": [1, 2]},
        "puf-regular": {},
        "sifu": {"largest": ["epsilon", "sigma"]},
    }
    return {**experiment, "tuned_on": {**experiment["tuned_on"], "remarks": remarks}}


def test_tables_say_which_methods_were_tuned_and_how_far(tuned: dict[str, Any]) -> None:
    assert tuning_note(tuned, LABELS) == NOTE
    assert tuning_note(load_experiment("digits").described(), LABELS).startswith("No values were chosen on other runs.")


def test_a_method_without_chosen_values_or_outside_the_sweep_is_not_tuned(tuned: dict[str, Any]) -> None:
    del tuned["defaults"]["pga"]
    assert tuning_note(tuned, LABELS).endswith("them: NoT. Not tuned, so no conclusion about them: PGA.")
    del tuned["tuned_on"]["remarks"]["sifu"]
    assert tuning_note(tuned, LABELS).endswith("Not tuned, so no conclusion about them: PGA, SIFU.")


def test_rows_without_remarks_take_those_of_the_built_in_setting_if_its_values_are_the_same() -> None:
    tuned = load_experiment("digits-tuned").described()
    note = tuning_note(tuned, LABELS)
    old = {key: tuned["tuned_on"][key] for key in ("seeds", "targets")}
    assert tuning_note({**tuned, "tuned_on": old}, LABELS) == note
    for other in (
        {"name": "mine"},
        {"defaults": {**tuned["defaults"], "pga": {**tuned["defaults"]["pga"], "stop_distance": 2.5}}},
    ):
        without = tuning_note({**tuned, "tuned_on": old, **other}, LABELS)
        assert without.endswith("targets 0): NoT, PGA, PUF-Regular, SIFU.")


def test_parts_with_and_without_remarks_are_one_experiment(tuned: dict[str, Any], tmp_path: Path) -> None:
    facts = {"commit": "", "device": "cpu", "command": "x"}
    old = {key: tuned["tuned_on"][key] for key in ("seeds", "targets")}
    for name, tuned_on in (("old", old), ("new", tuned["tuned_on"])):
        write(Results({**tuned, "tuned_on": tuned_on}, [facts], []), tmp_path / name)
    (both,) = read([tmp_path / "new", tmp_path / "old"])
    assert tuning_note(both.experiment, LABELS) == NOTE
