"""Accuracy and forgetting with shorter updates and steps: a federation trains and forgets one client in each encoding.

It is the demo's, and with a directory of datasets also CIFAR-100 small.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
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
_IMAGES = ("full", "i8", "i8_steps", "i8_updates_and_steps")


def encoding(report: Report, scratch: Path, repeats: int, data_dir: Path | None = None) -> None:
    """Test accuracy after training, and the distance of forget accuracy to a retrained model, in points."""
    compare(report, scratch / "digits", load_experiment("demo").federation, CASES, "digits")
    if data_dir is not None:
        images = load_experiment("cifar100-iid-small").placed(data_dir=data_dir).federation
        cases = {name: CASES[name] for name in _IMAGES}
        compare(report, scratch / "cifar100", images, cases, "cifar100")


def compare(
    report: Report,
    scratch: Path,
    spec: FederationSpec,
    cases: Mapping[str, dict[str, str]],
    data: str,
) -> None:
    """Trains and forgets in each case with each seed."""
    tests: dict[str, list[float]] = {name: [] for name in cases}
    distances: dict[str, list[float]] = {name: [] for name in cases}
    noise: list[float] = []
    for seed in SEEDS:
        seeded = spec.seeded(data=seed, init=seed, training=seed)
        evaluator = Evaluator(seeded)
        again = spec.seeded(data=seed, init=seed, training=seed + 1000)
        retrained, other = (_retrained(s, evaluator, scratch / f"{seed}-{i}") for i, s in enumerate((seeded, again)))
        noise.append(abs(retrained - other))
        for name, plan in cases.items():
            case = seeded.model_copy(update={"plan": plan})
            with InProcessFederation(case, scratch / f"{seed}-{name}", keep_models=3) as federation:
                federation.train()
                tests[name].append(evaluator.accuracies(federation.payload(), [_TARGET])[0])
                federation.forget([_TARGET], mode="regular")
                forgot = evaluator.accuracies(federation.payload(), [_TARGET])[1]
                manifest = federation.engine.manifest
            distances[name].append(abs(forgot - retrained))
    floor = statistics.mean(noise)
    for name in list(cases)[1:]:
        lost = [a - b for a, b in zip(tests["full"], tests[name], strict=True)]
        farther = [b - a for a, b in zip(distances["full"], distances[name], strict=True)]
        note = f"{len(SEEDS)} seeds: test {statistics.mean(tests[name]):.1f} %; standard error {_error(lost):.1f}"
        report.at_most(f"{data}_accuracy_lost_with_{name}", statistics.mean(lost), 1.0, "points", note)
        note = f"distance to Retrain less that of full; standard error {_error(farther):.1f}; goal: Retrain to Retrain'"
        report.at_most(f"{data}_forgetting_farther_with_{name}", statistics.mean(farther), floor, "points", note)
    report.details[f"encoding_{data}"] = {
        "bytes_of_an_update": {name: compact_nbytes(manifest, name) / manifest.nbytes(UPDATE) for name in ENCODINGS},
        "test_accuracy": tests,
        "forget_distance_to_retrain": distances,
        "retrain_to_retrain_again": noise,
    }


def _error(values: list[float]) -> float:
    """The standard error of the mean."""
    return float(statistics.stdev(values) / len(values) ** 0.5)


def _retrained(spec: FederationSpec, evaluator: Evaluator, directory: Path) -> float:
    """Forget accuracy of a model that never saw the target."""
    with InProcessFederation(spec, directory, without=[_TARGET], keep_models=3) as federation:
        federation.train()
        return float(evaluator.accuracies(federation.payload(), [_TARGET])[1])
