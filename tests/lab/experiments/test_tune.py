"""Sweeps: their configurations, the choice, and the file that a setting reads back."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_lab.cli.main import main
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import ExecutorOptions
from puf_lab.experiments.tune import Choice, choices_of, run_tuning, sweep_of
from puf_lab.reporting.results import Results, Run, read
from puf_lab.reporting.summary import summarise
from puf_lab.spec.settings_files import load_experiment, names
from puf_lab.spec.tuning import Remarks, TunedOn, remarks_of, toml_of

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
    kappa = tuned.defaults["puf-regular"]["kappa"]
    assert kappa in (0.5, 2.0)
    assert tuned.tuned_on is not None
    remarks = tuned.tuned_on.remarks["puf-regular"]
    assert (remarks.smallest, remarks.largest) == ((("kappa",), ()) if kappa == 0.5 else ((), ("kappa",)))
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


def test_data_on_which_values_were_chosen_are_not_reported(tmp_path: Path) -> None:
    """The seed of the data decides who has which samples. By default it is the seed of training."""
    tuned = load_experiment("digits-tuned")
    with pytest.raises(UsageError, match="values were chosen on the data of seed 101 with target \\[0\\]"):
        tuned.narrowed(data_seed=101, init_seed=101, seeds=[1])
    assert tuned.narrowed(data_seed=101, seeds=[1], targets=[[1]]).data_seed == 101
    assert tuned.narrowed(data_seed=5, seeds=[1]).data_seed == 5
    with pytest.raises(UsageError, match="values were chosen on seed 101"):
        tuned.narrowed(data_seed=5, seeds=[101])
    (tmp_path / "mine.toml").write_text(SETTING.replace("rounds = 1\n", "rounds = 1\ndata_seed = 3\n", 1))
    fixed = load_experiment(str(tmp_path / "mine.toml"))
    with pytest.raises(UsageError, match="the data of seed 3 with target \\[0\\] is reported; choose others under"):
        sweep_of(fixed, ())
    (tmp_path / "other.toml").write_text('base = "mine.toml"\n[tuning]\ntargets = [1]\n')
    other = sweep_of(load_experiment(str(tmp_path / "other.toml")), ())
    assert (other.data_seed, other.targets) == (3, ((1,),))


def test_remarks_name_values_at_the_edge_of_the_grid() -> None:
    """Words and truth values have no order. A value that the option does not let pass has nothing beyond it."""

    def found(method: str, chosen: dict[str, str], *others: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        remarks = remarks_of(method, chosen, [chosen, *others])
        return remarks.smallest, remarks.largest

    edges = {"epochs": "5.0", "lr": "0.001"}
    assert found("fedquit", edges, {"epochs": "1.0", "lr": "0.1"}) == (("lr",), ("epochs",))
    inside = [{"kappa": "1.0"}, {"kappa": "10.0"}]
    assert found("puf-regular", {"kappa": "2.0"}, *inside) == ((), ())
    assert found("not", {"include_bias": "true"}, {"include_bias": "false"}) == ((), ())
    assert found("pga", {"batch_size": "16", "delta_l2": "0.0"}, {"batch_size": "16", "delta_l2": "2.0"}) == ((), ())
    assert found("federaser", {"delta_t": "1"}, {"delta_t": "2"}) == ((), ())
    assert found("puf-special", {"epochs": "1"}, {"epochs": "2"}) == ((), ())
    assert found("mode", {"keep": "1"}, {"keep": "0.9"}) == ((), ())


def test_a_method_is_said_not_to_have_recovered_if_no_configuration_did() -> None:
    """PGA recovers with one of two radii. NoT never does, nor does Rapid, although its models are good enough."""

    def run(method: str, test: float, recovered: bool | None) -> Run:
        end = {"test": test, "forget": 60.0, "rmia": 50.0}
        stages = {} if recovered is None else {"unlearned": 0, "recovered": 1}
        seen = dict.fromkeys(stages or ["trained"], end)
        return Run(method, method, "0", 101, recovered, stages, values=seen, curve=[(0, test, 60.0), (1, test, 60.0)])

    runs = [run(name, 80.0, None) for name in ("original", "retrain", "floor")]
    runs += [run("pga delta_l2=1.0", 60.0, False), run("pga delta_l2=2.0", 80.0, True)]
    runs += [run("not include_bias=false", 60.0, False), run("rapid lr=0.1", 79.5, False)]
    results = Results(load_experiment("digits").described(), [], runs)
    remarks = {choice.method: choice.remarks for choice in choices_of(summarise(results))}
    assert {name: each.recovered for name, each in remarks.items()} == {"pga": True, "not": False, "rapid": False}
    chosen = {name: each.chosen_recovered for name, each in remarks.items()}
    assert chosen == {"pga": None, "not": (0, 1), "rapid": (0, 1)}


def test_the_choice_is_the_closest_of_the_configurations_whose_test_accuracy_is_not_below_noise() -> None:
    """Of each method the first is closest and bad, the second close and half a point below Retrain, the third recovered."""

    def run(method: str, test: float, forget: float, recovered: bool | None) -> Run:
        end = {"test": test, "forget": forget, "rmia": 50.0}
        stages = {} if recovered is None else {"unlearned": 0, "recovered": 1}
        seen = dict.fromkeys(stages or ["trained"], end)
        return Run(method, method, "0", 101, recovered, stages, values=seen, curve=[(0, test, 60.0), (1, test, 60.0)])

    runs = [run(name, 80.0, 60.0, None) for name in ("original", "retrain", "floor")]
    runs += [run("mode keep=0.6", 70.0, 60.0, False), run("mode keep=0.8", 79.5, 62.0, False)]
    runs += [run("mode keep=0.9", 80.0, 70.0, True)]
    (choice,) = choices_of(summarise(Results(load_experiment("digits").described(), [], runs)))
    assert [row.method for row in choice.rows] == ["mode keep=0.8", "mode keep=0.9", "mode keep=0.6"]
    assert (choice.remarks.recovered, choice.remarks.chosen_recovered) == (True, (0, 1))


def test_chosen_values_of_ones_own_method_are_read_back() -> None:
    on = TunedOn(seeds=(101,), targets=((0,),), remarks={"mine:Method": Remarks(recovered=False), "not": Remarks()})
    text = toml_of({"mine:Method": {"clip": "3.0", "kind": "soft"}, "not": {}}, on, "A comment.")
    found = tomllib.loads(text)
    assert found["defaults"] == {"mine:Method": {"clip": 3.0, "kind": "soft"}, "not": {}}
    assert TunedOn.model_validate(found["tuned_on"]) == on


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
    """Rows of a later sweep of a method, in a folder that is named after it, replace those of the sweep of all methods."""
    folders = Path(__file__).parents[3] / "docs" / "results" / "tuning"
    tuned = load_experiment(f"{name}-tuned")
    found: dict[str, Choice] = {}
    for folder in sorted(folders.glob(f"{name}*")):
        (results,) = read([folder])
        found |= {choice.method: choice for choice in choices_of(summarise(results))}
    choices = list(found.values())
    for choice in choices:
        assert {key: float_or_text(value) for key, value in choice.best.items()} == {
            key: float_or_text(str(tuned.defaults[choice.method][key]).lower()) for key in choice.best
        }
    assert tuned.tuned_on is not None
    assert tuned.tuned_on.remarks == {choice.method: choice.remarks for choice in choices}
    assert not tuned.tuned_on.overlap(tuned.seeds, tuned.targets)
    (tmp_path / "results.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(UsageError, match="is not a gzip file"):
        read([tmp_path])


def float_or_text(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value
