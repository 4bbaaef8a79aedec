"""The smoke settings: only the data and the rounds are smaller. One run of a small model goes through all of it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch

from puf_common.config.exit_codes import Exit
from puf_lab.experiments.jobs import jobs_of
from puf_lab.experiments.smoke import clear, free, peak_memory, refusal, run_all, smoke, smoke_experiment
from puf_lab.reporting.paper_coverage import full_size
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.federation import ModelSpec
from puf_lab.spec.settings_files import load_experiment
from puf_lab.spec.variants import METHODS

OWN = """
from puf_server.core.methods.natural import Natural


class TooLarge(Natural):
    def step(self, view):
        raise RuntimeError("CUDA out of memory. Tried to allocate 8 GiB.\\nSee the documentation.")
"""


def small(name: str, *methods: str) -> ExperimentSpec:
    """The smoke setting with a small model and few methods."""
    experiment = smoke_experiment(name, device="cpu", samples=2)
    classes = experiment.federation.model.options["classes"]
    model = ModelSpec(name="cifar-cnn", options={"classes": classes})
    federation = experiment.federation.model_copy(update={"model": model})
    return experiment.model_copy(update={"federation": federation}).narrowed(methods=methods)


SETTINGS = full_size()
NOT_FOR_SAMPLES = {"federaser", "pga", "fukd", "sifu"}
NOT_FOR_MASKS = {"mode", "fedau", "fukd", "fedquit", "fedosd"}


@pytest.mark.parametrize("name", SETTINGS)
def test_only_data_and_rounds_are_smaller_and_all_methods_are_tried(name: str) -> None:
    whole, tried = load_experiment(name), smoke_experiment(name, device="cpu", samples=4)
    assert tried.federation.recipe == whole.federation.recipe
    assert tried.federation.clients == whole.federation.clients
    assert tried.federation.model.name == whole.federation.model.name
    assert tried.federation.rounds == 2
    sides = {"mit-b0": 224, "res-unet": 384, "resnet18-gn": 32}
    assert tried.federation.data.options["size"] == sides[whole.federation.model.name]
    assert {v.name for v in tried.variants} == set(METHODS)
    assert {v for v in whole.variants if v.is_puf} <= set(tried.variants)
    refused = {job.variant.name for job in jobs_of(tried) if refusal(job)}
    masks = whole.federation.task == "segmentation"
    assert refused == (NOT_FOR_SAMPLES if whole.samples else NOT_FOR_MASKS if masks else set())


def test_every_run_has_a_line_and_is_made_once(tmp_path: Path) -> None:
    experiment = small("cifar100-iid", "puf-special", "pga")
    # Interrupted after three runs: they are not made again.
    first = list(itertools.islice(smoke(experiment, tmp_path), 3))
    lines = list(smoke(experiment, tmp_path))
    assert lines[:3] == first
    assert [line.error for line in lines] == [""] * len(lines)
    assert {line.run.split(" of ")[0] for line in lines} >= {"Retrain", "PUF-Special", "PGA"}
    assert all(line.peak > 0 and line.seconds > 0 for line in lines)
    # Another setting with the same runs.
    again = list(smoke(experiment.model_copy(update={"name": "other"}), tmp_path))
    assert [line.seconds for line in again] == [line.seconds for line in lines]
    assert {line.setting for line in again} == {"other"}


def test_runs_of_several_settings_are_counted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # one table: a narrower terminal gets its columns in several
    experiments = [small(name, "rapid", "not") for name in ("cifar100-iid", "cifar100-noniid")]
    assert run_all([*experiments, small("cifar100-noniid-samples", "pga")], tmp_path) == Exit.OK
    text = capsys.readouterr().out
    assert text.count("Rapid of client 0, seed 1: ") == 1
    assert "PGA of client 0, seed 1: not possible: this federation forgets by pga, which cannot forget single" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(" cifar100-")]
    assert [row[:5] for row in rows] == [
        ["cifar100-iid", "6", "0", "0", "0"],
        ["cifar100-noniid", "6", "6", "0", "0"],
        ["cifar100-noniid-samples", "5", "0", "1", "0"],
    ]
    assert not tmp_path.exists()


def test_a_method_that_serves_one_target_at_a_time_does_not_fail_for_two(tmp_path: Path) -> None:
    lines = list(smoke(small("cifar100-noniid-two", "pga", "mode", "sifu"), tmp_path))
    assert not any(line.error for line in lines)
    [refused] = [line for line in lines if line.refused]
    assert refused.run.startswith("PGA of client 0+1")
    assert refused.refused.startswith("pga forgets one client at a time")


def test_a_run_that_fails_is_one_line_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "too_large.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = small("cifar100-iid", "too_large:TooLarge", "natural")
    out = tmp_path / "out"
    assert run_all([experiment], out) == Exit.FAILURE
    text = capsys.readouterr().out
    assert "TooLarge of client 0, seed 1: failed: RuntimeError: CUDA out of memory. Tried to allocate 8 GiB.\n" in text
    assert "See the documentation" not in text
    assert "See the documentation" in (out / "failures.txt").read_text()
    lines = list(smoke(experiment, out))
    assert [bool(line.error) for line in lines] == ["TooLarge" in line.run for line in lines]


def test_runs_without_the_original_are_failed_lines(tmp_path: Path) -> None:
    experiment = small("cifar100-iid", "natural")
    data = experiment.federation.data
    wrong = data.model_copy(update={"options": {**data.options, "classes": 5000}})
    federation = experiment.federation.model_copy(update={"data": wrong})
    lines = list(smoke(experiment.model_copy(update={"federation": federation}), tmp_path))
    assert all(line.error for line in lines)
    assert lines[-1].error == "it needs a run that failed: Original, seed 1"


def test_other_files_of_the_directory_are_kept(tmp_path: Path) -> None:
    own = tmp_path / "thesis.tex"
    own.write_text("mine")
    next(smoke(small("cifar100-iid", "natural"), tmp_path))
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == [own]
    own.unlink()
    clear(tmp_path)
    assert not tmp_path.exists()


def test_memory_is_that_of_the_run() -> None:
    cpu = torch.device("cpu")
    # Blocks of 60 kB come from the heap. The last one, which stays, keeps the heap from shrinking by itself.
    blocks = [torch.ones(15 << 10) for _ in range(2048)]
    last = blocks.pop()
    before = peak_memory(cpu)
    del blocks
    free(cpu)
    if sys.platform == "linux":
        assert peak_memory(cpu) < before - (64 << 20)
    assert last[0] == 1
