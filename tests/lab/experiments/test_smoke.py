"""The smoke settings: only the data and the rounds are smaller. One run of a small model goes through all of it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch

from puf_common.config.exit_codes import Exit
from puf_lab.experiments.smoke import clear, free, peak_memory, run_all, smoke, smoke_experiment
from puf_lab.reporting.paper_coverage import full_size
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.federation import ModelSpec
from puf_lab.spec.settings_files import load_experiment

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


def test_only_data_and_rounds_are_smaller() -> None:
    for name in [n for n in full_size() if load_experiment(n).paper == n]:
        whole, small = load_experiment(name), smoke_experiment(name, device="cpu", samples=4)
        assert small.federation.recipe == whole.federation.recipe
        assert small.federation.clients == whole.federation.clients
        assert small.federation.model.name == whole.federation.model.name
        assert {v.name for v in small.variants} == {v.name for v in whole.variants}
        assert small.federation.rounds == 2
        sides = {"cifar100-noniid-mitb0": 224, "cifar100-noniid-mitb0-two": 224, "prostate": 384}
        assert small.federation.data.options["size"] == sides.get(name, 32)


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


def test_a_run_that_fails_is_one_line_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "too_large.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = small("cifar100-iid", "too_large:TooLarge", "natural")
    out = tmp_path / "out"
    assert run_all([experiment], out) == Exit.FAILURE
    text = capsys.readouterr().out
    assert "TooLarge of client 0, seed 1: RuntimeError: CUDA out of memory. Tried to allocate 8 GiB.\n" in text
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
    large = torch.ones(64 << 20, dtype=torch.uint8)
    before = peak_memory(cpu)
    del large
    free(cpu)
    if sys.platform == "linux":
        assert peak_memory(cpu) < before - (32 << 20)
