"""What `puf-lab plan` counts is at least what a run does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from puf_client.data.samples import Samples, count
from puf_client.routines.evaluate import per_sample
from puf_client.routines.per_sample import PerSample
from puf_lab import run_results
from puf_lab.evaluation import evaluator
from puf_lab.evaluation.metrics import compute
from puf_lab.experiments import measuring
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.estimate import Measuring, Sizes, measuring_of
from puf_lab.spec.experiment import ExperimentSpec


@pytest.mark.parametrize(
    "changes",
    [{}, {"stop": "product", "methods": ("puf-regular",)}, {"methods": ("fedosd",)}, {"backdoor": {"fraction": 0.5}}],
    ids=["paper", "product", "own-recovery", "backdoor"],
)
def test_measuring_is_counted_as_an_upper_bound(
    changes: Mapping[str, Any], tiny: ExperimentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = ExperimentSpec.checked({**dict(tiny), "methods": ("natural", "puf-regular"), **changes}, "tiny")
    cache = Cache(tmp_path / "cache")
    tested = count(evaluator.Evaluator(experiment.federation_for(1))._test)
    sets = tested if experiment.backdoor else 0
    sizes = Sizes(clients=(20, 20, 20), test=tested, sets=dict.fromkeys(experiment.targets, sets))
    planned = measuring_of(experiment, cache, sizes)

    samples: list[int] = []
    models: list[object] = []

    def counted(model: Any, dataset: Samples, *rest: Any, **options: Any) -> PerSample:
        samples.append(count(dataset))
        return per_sample(model, dataset, *rest, **options)

    def computed(outputs: evaluator.ModelOutputs, names: Collection[str]) -> dict[str, float]:
        models.append(outputs)
        return compute(outputs, tuple(names))

    monkeypatch.setattr(evaluator, "per_sample", counted)
    monkeypatch.setattr(measuring, "compute", computed)
    run_results(experiment, cache=cache.root)
    # The first evaluation looks at two samples before the first run.
    done = Measuring(sum(samples[1:]), len(models))
    assert done.samples <= planned.samples <= 3 * done.samples
    assert done.models <= planned.models <= 3 * done.models
    assert measuring_of(experiment, cache, sizes) == Measuring(0, 0), "nothing is left"

    # Runs whose metrics are to be computed again count without their rounds.
    for scores in cache.root.glob("*/scores-0.json"):
        scores.unlink()
    again = measuring_of(experiment, cache, sizes)
    assert 0 < again.samples < planned.samples / 2
    assert again.models == planned.models / 2
