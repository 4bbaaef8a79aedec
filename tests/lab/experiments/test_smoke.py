"""The smoke settings: only the data and the rounds are smaller. One run of a small model goes through all of it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import torch

from puf_lab.experiments.smoke import clear, peak_memory, reset_peak, smoke, smoke_experiment
from puf_lab.reporting.paper_coverage import full_size
from puf_lab.spec.federation import ModelSpec
from puf_lab.spec.settings_files import load_experiment


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
    experiment = smoke_experiment("cifar100-iid", device="cpu", samples=2)
    small = ModelSpec(name="cifar-cnn", options={"classes": 100})
    federation = experiment.federation.model_copy(update={"model": small})
    experiment = experiment.model_copy(update={"federation": federation}).narrowed(methods=["puf-special", "pga"])
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


def test_other_files_of_the_directory_are_kept(tmp_path: Path) -> None:
    experiment = smoke_experiment("cifar100-iid", device="cpu", samples=2)
    small = ModelSpec(name="cifar-cnn", options={"classes": 100})
    federation = experiment.federation.model_copy(update={"model": small})
    own = tmp_path / "thesis.tex"
    own.write_text("mine")
    next(smoke(experiment.model_copy(update={"federation": federation}), tmp_path))
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
    reset_peak(cpu)
    if sys.platform == "linux":
        assert peak_memory(cpu) < before - (32 << 20)
