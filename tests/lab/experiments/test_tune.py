"""Sweeps: their configurations, the choice, and the file that a setting reads back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_lab.cli.main import main
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import ExecutorOptions
from puf_lab.experiments.tune import choices_of, run_tuning, sweep_of
from puf_lab.reporting.results import read
from puf_lab.reporting.summary import summarise
from puf_lab.spec.settings_files import load_experiment, names

SETTING = """
base = "digits"
rounds = 1
targets = [0]
recovery_rounds = 1
horizon = 1
persistence = []
methods = ["puf-regular"]
[data]
clients = 3
options = { per_client = 10 }
[tuning]
seeds = [101]
[tuning.grid]
puf-regular = { kappa = [0.5, 2.0] }
not = { include_bias = [true, false] }
"""


def test_a_sweep_writes_values_that_the_setting_reads_back(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SETTING)
    experiment = load_experiment(str(tmp_path / "mine.toml"))
    options = ExecutorOptions.of(None, None, None)
    run_tuning(experiment, tmp_path / "out", methods=(), cache=Cache(tmp_path / "cache"), options=options)
    [rows] = read([tmp_path / "out"])
    assert {run.method for run in rows.runs} >= {"puf-regular epochs=1 kappa=0.5", "puf-regular epochs=1 kappa=2.0"}
    assert {run.seed for run in rows.runs} == {101}
    (tmp_path / "tuned.toml").write_text('base = ["mine.toml", "out/tuned.toml"]\n')
    tuned = load_experiment(str(tmp_path / "tuned.toml"))
    assert tuned.defaults["puf-regular"]["kappa"] in (0.5, 2.0)
    with pytest.raises(UsageError, match="values were chosen on seed 101"):
        tuned.narrowed(seeds=[101])


def test_a_sweep_stores_as_durably_as_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(SETTING)
    syncs: list[int] = []
    sync = os.fsync

    def counted(handle: int) -> None:
        syncs.append(handle)
        sync(handle)

    monkeypatch.setattr(os, "fsync", counted)

    def tuned(durability: str) -> int:
        syncs.clear()
        flags = ("--methods", "puf-regular", "--durability", durability, "--out", str(tmp_path / "out"))
        assert main(["tune", str(tmp_path / "mine.toml"), *flags, "--cache", str(tmp_path / durability)]) == Exit.OK
        return len(syncs)

    assert tuned("full") > 10 * tuned("none")


def test_runs_of_a_sweep_end_at_completion(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SETTING.replace("horizon = 1", "horizon = 8").replace("= []", "= [5, 10]"))
    sweep = sweep_of(load_experiment(str(tmp_path / "mine.toml")), ())
    assert (sweep.horizon, sweep.persistence, sweep.recovery_rounds) == (1, (), 1)


def test_runs_that_are_reported_cannot_be_tuned_on(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SETTING)
    experiment = load_experiment(str(tmp_path / "mine.toml"))
    assert [v.name for v in sweep_of(experiment, ["not"]).variants][-2:] == ["not", "not"]
    with pytest.raises(UsageError, match="seed 101 with target \\[0\\] is reported"):
        sweep_of(experiment.narrowed(seeds=[1, 101]), ())
    with pytest.raises(UsageError, match="no grid for pga"):
        sweep_of(experiment, ["pga"])
    with pytest.raises(UsageError, match="has no table"):
        sweep_of(load_experiment("digits"), ())


def test_the_grids_of_built_in_settings_name_options_that_exist() -> None:
    found = [e for e in map(load_experiment, names()) if e.tuning]
    assert {"digits-all", "cifar100-iid-all-small", "cifar100-noniid-all-small"} <= {e.name for e in found}
    for experiment in found:
        for variant in sweep_of(experiment, ()).variants:
            variant.strength()
            assert variant.own_rounds(3, 6) >= 0


@pytest.mark.parametrize("name", ["digits", "cifar100-iid", "cifar100-noniid"])
def test_the_values_in_the_repository_are_those_that_the_rows_choose(name: str, tmp_path: Path) -> None:
    rows = Path(__file__).parents[3] / "docs" / "results" / "tuning" / name
    (results,) = read([rows])
    tuned = load_experiment(f"{name}-tuned")
    for choice in choices_of(summarise(results)):
        assert {key: float_or_text(value) for key, value in choice.best.items()} == {
            key: float_or_text(str(tuned.defaults[choice.method][key]).lower()) for key in choice.best
        }
    assert tuned.tuned_on is not None
    assert not tuned.tuned_on.overlap(tuned.seeds, tuned.targets)
    (tmp_path / "results.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(UsageError, match="is not a gzip file"):
        read([tmp_path])


def float_or_text(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value
