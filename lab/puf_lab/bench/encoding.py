"""Accuracy and forgetting with shorter updates and steps: the demo's federation trains and forgets in each encoding."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from puf_common.tensors.encodings import ENCODINGS, compact_nbytes
from puf_common.tensors.manifest import UPDATE
from puf_lab.bench.report import Report
from puf_lab.evaluation.evaluator import Evaluator
from puf_lab.federations.in_process import InProcessFederation
from puf_lab.spec.federation import FederationSpec
from puf_lab.spec.settings_files import load_experiment

SEEDS = (1, 2, 3, 4, 5)
_TARGET = 3
# The plan of each case. The first one is what the others are compared with.
CASES: dict[str, dict[str, str]] = {
    **{name: {"update_encoding": name} for name in ENCODINGS},
    "i8_steps": {"step_encoding": "i8"},
    "i8_updates_and_steps": {"update_encoding": "i8", "step_encoding": "i8"},
}


def encoding(report: Report, scratch: Path, repeats: int) -> None:
    """Test accuracy after training, and the distance of forget accuracy to a retrained model, in points."""
    compare(report, scratch, load_experiment("demo").federation, SEEDS, "digits")


def compare(report: Report, scratch: Path, spec: FederationSpec, seeds: Sequence[int], data: str) -> None:
    """Trains and forgets in each case with each seed."""
    tests: dict[str, list[float]] = {name: [] for name in CASES}
    distances: dict[str, list[float]] = {name: [] for name in CASES}
    noise: list[float] = []
    for seed in seeds:
        seeded = spec.seeded(data=seed, init=seed, training=seed)
        evaluator = Evaluator(seeded)
        again = spec.seeded(data=seed, init=seed, training=seed + 1000)
        retrained, other = (_retrained(s, evaluator, scratch / f"{seed}-{i}") for i, s in enumerate((seeded, again)))
        noise.append(abs(retrained - other))
        for name, plan in CASES.items():
            case = seeded.model_copy(update={"plan": plan})
            with InProcessFederation(case, scratch / f"{seed}-{name}", keep_models=3) as federation:
                federation.train()
                tests[name].append(evaluator.accuracies(federation.payload(), [_TARGET])[0])
                federation.forget([_TARGET], mode="regular")
                forgot = evaluator.accuracies(federation.payload(), [_TARGET])[1]
                manifest = federation.engine.manifest
            distances[name].append(abs(forgot - retrained))
    floor = statistics.mean(noise)
    full = tests["full"], distances["full"]
    for name in list(CASES)[1:]:
        lost = [a - b for a, b in zip(full[0], tests[name], strict=True)]
        farther = [b - a for a, b in zip(full[1], distances[name], strict=True)]
        error = statistics.stdev(farther) / len(seeds) ** 0.5 if len(seeds) > 1 else 0.0
        note = f"{len(seeds)} seeds, {data}: test {statistics.mean(tests[name]):.1f} %"
        report.at_most(f"accuracy_lost_with_{name}", statistics.mean(lost), 1.0, "points", note)
        note = f"distance to Retrain less that of full; standard error {error:.1f}; goal: Retrain to Retrain'"
        report.at_most(f"forgetting_farther_with_{name}", statistics.mean(farther), floor, "points", note)
    report.details[f"encoding_{data}"] = {
        "bytes_of_an_update": {name: compact_nbytes(manifest, name) / manifest.nbytes(UPDATE) for name in ENCODINGS},
        "test_accuracy": tests,
        "forget_distance_to_retrain": distances,
        "retrain_to_retrain_again": noise,
    }


def _retrained(spec: FederationSpec, evaluator: Evaluator, directory: Path) -> float:
    """Forget accuracy of a model that never saw the target."""
    with InProcessFederation(spec, directory, without=[_TARGET], keep_models=3) as federation:
        federation.train()
        return float(evaluator.accuracies(federation.payload(), [_TARGET])[1])
