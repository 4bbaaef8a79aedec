"""Experiments from start to end on a tiny setting: cached, resumed, combined, reported."""

from __future__ import annotations

import json
import platform
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_lab.cli.main import main
from puf_lab.experiments import runner
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.jobs import Job, jobs_of
from puf_lab.experiments.measuring import evaluator_of, forgotten_by
from puf_lab.experiments.perform import perform
from puf_lab.reporting.html import run_report
from puf_lab.reporting.results import read, write
from puf_lab.reporting.summary import summarise
from puf_lab.spec.experiment import ExperimentSpec, SampleSelection
from puf_lab.spec.variants import Variant


def run(file: Path, out: Path, *more: str) -> int:
    return main(["run", str(file), "--out", str(out), "--cache", str(out.parent / "cache"), *more])


def test_equal_runs_of_different_experiments_share_their_name(tiny: ExperimentSpec) -> None:
    keys = {job.title: job.key for job in jobs_of(tiny)}
    assert len(set(keys.values())) == len(keys) == 1 + 6 * 2
    other = tiny.model_copy(update={"name": "other", "title": "Other", "methods": ("natural",), "horizon": 2})
    for job in jobs_of(other):
        assert (job.key == keys[job.title]) == (job.kind in ("original", "retrain")), "methods depend on the horizon"
    slower = tiny.placed(recipe=tiny.federation.recipe.model_copy(update={"lr": 0.05}))
    assert not {job.key for job in jobs_of(slower)} & set(keys.values())
    assert not {job.key for job in jobs_of(tiny.narrowed(seeds=[2]))} & set(keys.values())


def test_an_experiment_is_run_once_resumed_and_reported(tiny_file: Path, tmp_path: Path) -> None:
    out, cache = tmp_path / "out", tmp_path / "cache"
    assert run(tiny_file, out) == Exit.OK
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    values = [line for line in lines if line["kind"] == "value"]
    assert {"setting", "method", "targets", "seed", "round", "metric", "value"} <= values[0].keys()
    assert {"code", "commit", "device", "federation"} <= values[0].keys(), "what produced the value"
    assert {line["federation"] for line in values} == {"in-process"}
    assert all(line["code"] and line["device"].startswith("cpu ") for line in values)
    first = (out / "results.jsonl").read_text()

    # After a kill one job and the measurements of another one are missing. Only these are done again.
    made = {path.name: path.stat().st_mtime_ns for path in cache.glob("*/outcome.json")}
    (victim,) = list(cache.glob("natural-*"))[:1]
    shutil.rmtree(victim)
    (cache / f".{victim.name}.{platform.node()}.999999999.part").mkdir()
    elsewhere = cache / f".{victim.name}.{platform.node()}-other.999999999.part"
    elsewhere.mkdir()
    (next(cache.glob("forget-*")) / "scores-0.json").unlink(missing_ok=True)
    before = {path: path.stat().st_mtime_ns for path in cache.glob("*/outcome.json")}
    assert run(tiny_file, out, "--jobs", "2") == Exit.OK
    assert list(cache.glob(".*")) == [elsewhere], (
        "leftovers of the killed process are deleted, not those of another machine"
    )
    elsewhere.rmdir()
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    assert len(list(cache.glob("*/outcome.json"))) == len(before) + 1
    assert made

    def figures(text: str) -> list[object]:
        parsed = [json.loads(line) for line in text.splitlines()]
        return [{k: v for k, v in line.items() if k not in ("facts", "seconds")} for line in parsed]

    assert figures((out / "results.jsonl").read_text()) == figures(first), "the same bits give the same figures"

    report = tmp_path / "report"
    assert run_report([out], report) == Exit.OK
    page = (report / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page, "the page loads nothing from elsewhere"
    assert "Too small for any conclusion &lt;&gt;." in page, "text is escaped"
    for name in ("efficacy", "lasting", "pairs", "costs"):
        assert (report / "tiny" / f"{name}.csv").read_text().startswith(("method,", "against PUF-Regular"))
        assert r"\toprule" in (report / "tiny" / f"{name}.tex").read_text()
    assert "PUF-Regular" in (report / "tiny" / "report.md").read_text()


def test_runs_of_several_machines_are_combined(tiny_file: Path, tmp_path: Path) -> None:
    assert run(tiny_file, tmp_path / "a", "--targets", "0", "--methods", "natural") == Exit.OK
    assert run(tiny_file, tmp_path / "b", "--targets", "1", "--methods", "natural") == Exit.OK
    (both,) = read([tmp_path / "a", tmp_path / "b"])
    summary = summarise(both)
    labels = ["Original", "Retrain", "Retrain′ (floor)", "Natural"]
    assert (summary.targets, [row.label for row in summary.rows]) == (2, labels)
    natural = summary.row("natural")
    assert natural is not None
    assert natural.runs == 2
    assert natural.recovery is not None

    # Another experiment under the same name is refused.
    changed = replace(both, experiment={**both.experiment, "rounds": 3})
    (tmp_path / "c").mkdir()
    write(changed, tmp_path / "c")
    with pytest.raises(UsageError, match="do not belong to one experiment, they differ in rounds"):
        read([tmp_path / "a", tmp_path / "c"])
    # A target without a retrained model cannot be compared.
    lone = replace(both, runs=[run for run in both.runs if (run.method, run.targets) != ("retrain", "1")])
    with pytest.raises(UsageError, match="no retrained model for target 1, seed 1"):
        summarise(lone)


def test_stages_of_a_run_that_may_not_recover(tiny: ExperimentSpec, tmp_path: Path) -> None:
    experiment = tiny.narrowed(targets=[(0,)], methods=["puf-special kappa=4"])
    cache = Cache(tmp_path / "cache")
    for job in jobs_of(experiment):
        perform(job, cache)
    (job,) = (job for job in jobs_of(experiment) if job.kind == "forget")
    outcome = cache.outcome(job)
    curve = [test for _, test, _ in outcome["curve"]]
    reached = next((i for i, test in enumerate(curve[:3]) if test >= outcome["goal"]), None)
    assert outcome["recovered"] == (reached is not None)
    completed = 2 if reached is None else reached
    outcome["stages"].pop("equal", None)
    assert outcome["stages"] == {"unlearned": 0, "horizon": 1, "recovered": completed, "after 1": completed + 1}
    assert len(outcome["curve"]) == completed + 2
    assert outcome["unlearning"]["rounds"] == 1
    assert outcome["spent"]["rounds"] == 1 + completed


def test_retraining_leaves_out_the_forgotten_data(tiny: ExperimentSpec, tmp_path: Path) -> None:
    """If half of a target's samples are forgotten, retraining uses the other half."""
    cache = Cache(tmp_path / "cache")
    half = tiny.model_copy(update={"samples": SampleSelection(fraction=0.5)}).narrowed(targets=[(0,)])
    retrain, original = (Job(half, Variant(name), 1, (0,) * (name == "retrain")) for name in ("retrain", "original"))
    for job in (retrain, original):
        perform(job, cache)
    forgotten = forgotten_by(retrain)
    data = evaluator_of(retrain.federation).clients[0]
    chosen = forgotten[0]
    assert chosen is not None
    assert len(chosen) == 10
    assert set(chosen) < set(data.ids)
    assert cache.outcome(retrain)["spent"]["samples"] == 2 * (20 + 20 + 10)
    assert cache.outcome(original)["spent"]["samples"] == 2 * 60
    regular = Job(half, Variant("puf-regular"), 1, (0,))
    perform(regular, cache)
    # Two retained clients and both halves of the target; recovery is without the forget half.
    assert cache.outcome(regular)["unlearning"]["samples"] == 60
    assert cache.outcome(regular)["spent"]["samples"] == 60 + 50 * cache.outcome(regular)["stages"]["recovered"]


def test_two_targets_are_forgotten_in_one_round(tiny: ExperimentSpec, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    both = tiny.narrowed(targets=[(0, 2)], methods=["puf-special"])
    for job in jobs_of(both):
        perform(job, cache)
        if job.kind == "forget":
            assert cache.outcome(job)["unlearning"] == {"rounds": 1, "nbytes": 4 * 38_378 * 4, "samples": 40}
            assert cache.outcome(job)["spent"]["samples"] == 40 + 20 * cache.outcome(job)["stages"]["recovered"]
        elif job.kind == "retrain":
            assert cache.outcome(job)["spent"]["samples"] == 2 * 20


def test_invalid_commands_are_refused_with_a_reason(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, message in {
        ("run", "nothing"): "there is no setting 'nothing'",
        ("run", str(tiny_file), "--federation", "cloud"): "'cloud' is not one of in-process, processes",
        ("run", str(tiny_file), "--executor", "cloud"): "'cloud' is not one of local, pool, ray",
        ("run", str(tiny_file), "--executor", "ray", "--jobs", "2"): "--jobs is for --executor pool",
        ("run", str(tiny_file), "--jobs", "2", "--ray-address", "a:1"): "--ray-address is for --executor ray",
        ("run", str(tiny_file), "--engine", "ray", "--executor", "pool"): "--engine is replaced by",
        ("run", str(tiny_file), "--goals"): "tiny states no goals; add a table [goals]",
        ("quality", "--targets", "1", "--seeds", "2"): "goals need at least 3 targets times seeds",
        ("quality", "--targets", "0"): "--targets of `puf-lab quality` is a number of at least 1",
        ("quality", "--settings", "digit"): "there is no quality setting 'digit'; use some of cifar100-iid",
        ("quality", "--methods", "natural"): "the goals are for puf-auto; this experiment has no puf-auto",
        ("run", str(tiny_file), "--seeds", "a"): "--seeds a must be numbers",
        ("run", str(tiny_file), "--device", "cuda:99"): "device cuda:99",
        ("run", str(tiny_file), "--jobs", "0"): "--jobs must be at least 1",
        ("run", str(tiny_file), "--method", "nowhere:Method"): "there is no module nowhere",
        ("run", "cifar100-noniid-mitb0"): "name the checkpoint with --weights FILE.safetensors",
        ("report", str(tmp_path)): "cannot read",
    }.items():
        more = () if words[0] == "report" else ("--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out"))
        out = ("--out", str(tmp_path / "report")) if words[0] == "report" else ()
        assert main([*words, *more, *out]) == Exit.USAGE
        assert message in " ".join(capsys.readouterr().err.split())
        left = sorted(path.name for path in tmp_path.iterdir())
        assert left == [tiny_file.name], "a refused command leaves no files"


def test_plan_and_list(tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = str(tmp_path / "cache")
    assert main(["plan", str(tiny_file), "--cache", cache, "--seconds-per-round", "3600"]) == Exit.OK
    printed = " ".join(capsys.readouterr().out.split())
    # 2 rounds of the original, 2 of each of six retrained, 2 + 1 of each of two Natural, 1 + 2 + 1 of each of four others.
    assert "13 of 13 runs to do, at most 36 rounds of 3600.0 s (as given): 36.0 hours" in printed
    assert "without measuring" in printed
    assert main(["plan", str(tiny_file), "--cache", cache]) == Exit.OK
    printed = " ".join(capsys.readouterr().out.split())
    assert "measured on 3 batches here, cpu" in printed
    assert re.search(r" measuring \d+\.\d\d .* one after the other, \d+\.\d of them for measuring;", printed)
    assert main(["list"]) == Exit.OK
    assert "cifar100-noniid-mitb0-two" in capsys.readouterr().out


def test_a_report_of_missing_results_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "nosuch"]) == Exit.USAGE
    assert main(["report"]) == Exit.USAGE
    assert not list(tmp_path.iterdir())


def test_a_missed_goal_is_a_failure(tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tiny federation learns too little to be forgotten well. Other methods may miss the goals."""
    impossible = "\n[goals]\nforget = 1e-9\nrmia = 1e-9\ndip = 1e-9\n"
    tiny_file.write_text(tiny_file.read_text() + impossible)
    assert run(tiny_file, tmp_path / "out", "--targets", "0,1,2", "--goals") == Exit.FAILURE
    printed = capsys.readouterr().out
    (results,) = read([tmp_path / "out"])
    goals = results.facts[0]["goals"]
    assert len(goals) == 2 * (2 + 2 + 1), "two methods: two distances at two moments, and the dip"
    assert printed.count("MISSED  ") == sum(not goal["met"] for goal in goals) > 0
    # Bounds of 1,000 points are met. Only the goals of the method that is judged count.
    tiny_file.write_text(tiny_file.read_text().replace("1e-9", "1000"))
    assert run(tiny_file, tmp_path / "again", "--targets", "0,1,2", "--goals") == Exit.OK


def test_tables_are_complete_in_a_pipe(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(tiny_file, tmp_path / "out", "--targets", "0", "--methods", "natural") == Exit.OK
    head = next(line for line in capsys.readouterr().out.splitlines() if "recovery rounds" in line)
    assert all(label in head for label in ("Δ forget", "Δ MIA Song", "Δ MIA Yeom", "Δ RMIA AUC", "MB"))


def test_a_log_file_names_the_rounds_of_a_long_run(
    tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SECONDS_BETWEEN_LINES", 0.0)
    assert run(tiny_file, tmp_path / "out", "--targets", "0", "--methods", "natural") == Exit.OK
    printed = capsys.readouterr().out
    assert printed.index("[0/5] started: Original") < printed.index("[0/5] round 1 of at most 11")
    assert printed.index("[0/5] round 2 of") < printed.index("[1/5] Original, seed")
