"""Metrics of models: the way from the original, named evaluation sets, and the success of a backdoor."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import puf_lab
from puf_lab.evaluation.evaluator import Beside, Evaluator, ModelOutputs
from puf_lab.evaluation.metrics import compute
from puf_lab.federations.state_directories import initial_model
from puf_lab.reporting.evidence_table import evidence
from puf_lab.reporting.summary import summarise
from puf_lab.spec.experiment import ExperimentSpec


def beside(evaluator: Evaluator, before: bytes) -> Beside:
    outputs = evaluator.outputs(before, [1])
    return Beside(reference=outputs, original=outputs, retrained=outputs, before=before, sets={})


def test_the_way_from_the_original_and_the_losses_along_it(tiny: ExperimentSpec) -> None:
    """The models on the line are weighted means of both ends. The digits network has parameters only, no buffers."""
    ends = [bytes(initial_model(tiny.federation_for(seed)).payload) for seed in (1, 2)]
    first, last = (np.frombuffer(payload, np.float32) for payload in ends)
    evaluator = Evaluator(tiny.federation_for(1))
    outputs = evaluator.outputs(ends[1], [1], beside(evaluator, ends[0]))
    assert outputs.moved == pytest.approx(float(np.linalg.norm(last.astype(float) - first)), rel=1e-6)

    def forget_loss(share: float) -> float:
        model = (first + (last - first) * np.float32(share)).tobytes()
        return float(evaluator.outputs(model, [1]).forget.losses.mean())

    expected = [forget_loss(share) for share in (0, 0.25, 0.5, 0.75, 1)]
    assert list(outputs.line) == pytest.approx(expected, rel=1e-5)
    assert len({round(loss, 3) for loss in expected}) > 2, "the losses of the points on this line differ"

    found = compute(outputs, ["way"])
    assert [found[f"line_{i}"] for i in range(5)] == list(outputs.line)
    assert found["moved"] == outputs.moved
    stayed = compute(evaluator.outputs(ends[0], [1], beside(evaluator, ends[0])), ["way"])
    assert (stayed["moved"], stayed["line_rise"]) == (0.0, 0.0)


def test_the_rise_of_the_loss_is_the_largest_above_the_straight_line(tiny: ExperimentSpec) -> None:
    outputs = Evaluator(tiny.federation_for(1)).outputs(initial_model(tiny.federation_for(1)).payload, [1])
    # The straight line from 1 to 3 is 1, 1.5, 2, 2.5, 3. The losses are above it by 0, 0.5, 1.25, -0.5, 0.
    line = (1.0, 2.0, 3.25, 2.0, 3.0)
    on_it = ModelOutputs(outputs.test, outputs.retained, outputs.forget, 1, moved=2.0, line=line)
    assert compute(on_it, ["way"])["line_rise"] == 1.25


SETTING = """
base = "digits"
title = "Planted"
rounds = 12
targets = [0]
recovery_rounds = 1
horizon = 1
persistence = [1]
methods = ["puf-regular kappa=3"]
evaluation_sets = { again = "my_sets:again", own = "my_sets:own" }
[data]
clients = 3
options = { per_client = 60 }
[backdoor]
fraction = 0.5
size = 3
"""
SETS = """
from dataclasses import replace
from puf_client.data import load_data, test_set

def clean(context):
    return replace(context, options={k: v for k, v in context.options.items() if not k.startswith("backdoor")})

def again(context, targets):
    return test_set("digits", clean(context))

def own(context, targets):
    return load_data("digits", replace(clean(context), shard=targets[0])).train_plain

def certainty(outputs):
    return 100 * float(outputs.sets["again"].confidences.mean())
"""


def test_backdoor_and_evaluation_sets_are_measured_for_every_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("my_sets", None)
    (tmp_path / "my_sets.py").write_text(SETS)
    (tmp_path / "planted.toml").write_text(SETTING)
    results = puf_lab.run_results("planted.toml", cache=tmp_path / "cache", metrics=["my_sets:certainty"])
    end = {
        run.label.split()[0]: run.values["trained" if run.recovered is None else "recovered"] for run in results.runs
    }
    for values in end.values():
        assert values["again"] == values["test"], "the set is the test set, so the model was run on it"
        assert 0 < values["certainty"] < 100
    # Half of the target's images have the trigger and a label that is wrong for most of them.
    assert end["Original"]["own"] < end["Original"]["forget"] - 10
    assert end["Original"]["backdoor"] > 50 > end["Retrain"]["backdoor"]
    assert end["PUF-Regular"]["backdoor"] < end["Original"]["backdoor"]
    sheet = evidence(summarise(results))
    assert sheet is not None
    assert sheet.head[-2:] == ["attack success", "1 rounds later"]
    rows = {row[0].split()[0]: row for row in sheet.rows}
    assert rows["Original"][-2:] == [f"{end['Original']['backdoor']:.1f}", "–"]
    assert rows["Retrain"][2] == "1 / 0 / 0", "it is itself, so it is closer to Retrain"
    assert rows["Original"][2] == "0 / 1 / 0"
    assert rows["Original"][3] == "0.00"
    assert float(rows["PUF-Regular"][3]) == pytest.approx(end["PUF-Regular"]["moved"], abs=0.005)
