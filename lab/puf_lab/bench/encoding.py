"""Accuracy lost by updates in half the bytes: the demo's federation trains and forgets in each encoding."""

from __future__ import annotations

import statistics
from pathlib import Path

from puf_common.tensors.encodings import ENCODINGS, compact_nbytes
from puf_common.tensors.manifest import UPDATE
from puf_lab.bench.report import Report
from puf_lab.evaluation.evaluator import Evaluator
from puf_lab.federations.in_process import InProcessFederation
from puf_lab.spec.settings_files import load_experiment

_SEEDS = (1, 2, 3)
_TARGET = 3


def encoding(report: Report, scratch: Path, repeats: int) -> None:
    """Accuracy on test data after training, and on the target's data after it was forgotten, in per cent."""
    demo = load_experiment("demo").federation
    tests: dict[str, list[float]] = {name: [] for name in ENCODINGS}
    forgets: dict[str, list[float]] = {name: [] for name in ENCODINGS}
    bytes_to_full = 1.0
    for name in ENCODINGS:
        for seed in _SEEDS:
            spec = demo.seeded(data=seed, init=seed, training=seed).model_copy(
                update={"plan": {"update_encoding": name}}
            )
            evaluator = Evaluator(spec)
            with InProcessFederation(spec, scratch / f"{name}-{seed}") as federation:
                federation.train()
                tests[name].append(evaluator.accuracies(federation.payload(), [_TARGET])[0])
                federation.forget([_TARGET], mode="regular")
                forgets[name].append(evaluator.accuracies(federation.payload(), [_TARGET])[1])
                manifest = federation.engine.manifest
        bytes_to_full = compact_nbytes(manifest, name) / manifest.nbytes(UPDATE)
        report.console.print(
            f"  {name}: {100 * bytes_to_full:.1f} % of the bytes; test {statistics.mean(tests[name]):.1f} %, "
            f"forgotten data {statistics.mean(forgets[name]):.1f} %"
        )
    for name in ENCODINGS[1:]:
        lost = statistics.mean(tests["full"]) - statistics.mean(tests[name])
        note = f"mean of {len(_SEEDS)} seeds, digits: {statistics.mean(tests[name]):.1f} %"
        report.at_most(f"accuracy_lost_with_{name}", lost, 1.0, "points", note)
    report.details["encoding_accuracy"] = {"test": tests, "forgotten_data_after_recovery": forgets}
