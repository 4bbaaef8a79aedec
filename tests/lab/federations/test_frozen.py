"""A user's model with frozen parameters in the lab: they do not travel, and every run has the same ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.grpc.test_frozen import HEAD_BYTES, MODEL, MODULE

from puf_common.config.exit_codes import Exit
from puf_common.models.module_tensors import base_digest
from puf_lab.cli.main import main
from puf_lab.evaluation.evaluator import Evaluator
from puf_lab.experiments.jobs import jobs_of
from puf_lab.federations.state_directories import initial_model
from puf_lab.reporting.results import read
from puf_lab.spec.settings_files import load_experiment


def test_a_model_with_frozen_parameters(tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "frozen_body.py").write_text(MODULE)
    tiny_file.write_text(f'{tiny_file.read_text()}[model]\nname = "{MODEL}"\n')
    # Retrain' has another seed of training. Its frozen parameters must be those of the original all the same.
    narrow = ["--targets", "0", "--methods", "puf-special"]
    assert main(["run", tiny_file.name, *narrow]) == Exit.OK
    (results,) = read([tmp_path / "runs" / "tiny"])
    assert results.methods == ["original", "retrain", "floor", "puf-special epochs=1"]
    experiment = load_experiment(tiny_file.name).narrowed(targets=[(0,)], methods=["puf-special"])
    jobs = list(jobs_of(experiment))
    first = initial_model(jobs[0].federation)
    assert {initial_model(job.federation).base_digest for job in jobs if job.repeat < 2} == {first.base_digest} != {""}
    assert len(first.payload) == HEAD_BYTES
    # A reference has another seed of its weights, frozen ones included. It is evaluated with its own.
    (reference,) = jobs[1].references
    evaluator = Evaluator(jobs[1].federation)
    digests = [base_digest(e._model) for e in (evaluator, evaluator.with_frozen_of(reference.federation))]
    assert [d.hex() for d in digests] == [initial_model(job.federation).base_digest for job in (jobs[1], reference)]
    assert digests[0] != digests[1]
    sys.modules.pop("frozen_body", None)
