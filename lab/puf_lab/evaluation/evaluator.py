"""Outputs of a model for every sample of an experiment.

Only an experiment has the data of all clients in one place. A federation never does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_client.data import ClientData, load_data, test_set
from puf_client.data.samples import Samples, resident, select
from puf_client.routines.evaluate import per_sample
from puf_client.routines.per_sample import PerSample
from puf_client.routines.train import prepare
from puf_client.tasks import task_named
from puf_client.worker.devices import choose
from puf_common.models.module_tensors import load_payload, manifest_of
from puf_common.models.networks import build_any
from puf_common.tensors.chunks import Payload
from puf_lab.evaluation.comparison import percent
from puf_lab.spec.federation import FederationSpec

# The forgotten samples of each target. None stands for all of them.
ForgetSet = Mapping[int, Sequence[str] | None]


@dataclass(frozen=True)
class ModelOutputs:
    """Outputs of one model on test, retained and forget data.

    `reference` has the mean outputs of models that were retrained without the same target, with other seeds.
    """

    test: PerSample
    retained: PerSample
    forget: PerSample
    seed: int
    reference: ModelOutputs | None = None


def mean_outputs(models: Sequence[ModelOutputs]) -> ModelOutputs:
    """The mean over models, sample by sample."""

    def mean(part: str) -> PerSample:
        sides: list[PerSample] = [getattr(model, part) for model in models]
        columns = ("losses", "scores", "confidences")
        return replace(sides[0], **{name: np.mean([getattr(side, name) for side in sides], axis=0) for name in columns})

    return ModelOutputs(mean("test"), mean("retained"), mean("forget"), models[0].seed)


class Evaluator:
    """Evaluates models of one federation."""

    def __init__(self, spec: FederationSpec) -> None:
        self._spec = spec
        options = spec.server_config().model_options
        self._model = build_any(spec.model.name, options, spec.recipe.seed)
        self._manifest = manifest_of(self._model)
        self._task = task_named(spec.task)
        self._device = choose(spec.device).device

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self._model.parameters())

    @cached_property
    def clients(self) -> list[ClientData]:
        return [load_data(self._spec.data.name, self._spec.context(shard)) for shard in range(self._spec.clients)]

    @cached_property
    def _train(self) -> list[Samples]:
        return [resident(data.train_plain, self._device) for data in self.clients]

    @cached_property
    def _test(self) -> Samples:
        return resident(test_set(self._spec.data.name, self._spec.context(0)), self._device)

    def accuracies(self, payload: Payload, targets: Collection[int] | ForgetSet) -> tuple[float, float]:
        """Test and forget accuracy in per cent."""
        self._load(payload)
        parts = self._positions(targets)
        forget = np.concatenate([self._per_sample(select(self._train[t], parts[t])).scores for t in parts])
        return percent(self._per_sample(self._test).scores), percent(forget)

    def outputs(
        self, payload: Payload, targets: Collection[int] | ForgetSet, reference: ModelOutputs | None = None
    ) -> ModelOutputs:
        """The outputs from which metrics are computed."""
        self._load(payload)
        parts = self._positions(targets)
        seen = [self._per_sample(samples) for samples in self._train]
        rest = {
            shard: np.setdiff1d(np.arange(len(part.scores)), parts.get(shard, [])) for shard, part in enumerate(seen)
        }
        return ModelOutputs(
            test=self._per_sample(self._test),
            retained=_joined(seen, rest),
            forget=_joined(seen, parts),
            seed=self._spec.recipe.seed,
            reference=reference,
        )

    def _positions(self, targets: Collection[int] | ForgetSet) -> dict[int, list[int]]:
        """Positions of the forgotten samples in each target's data, by shard in order."""
        wanted: ForgetSet = targets if isinstance(targets, Mapping) else dict.fromkeys(targets)
        found: dict[int, list[int]] = {}
        for shard in sorted(wanted):
            ids, chosen = self.clients[shard].ids, wanted[shard]
            kept = None if chosen is None else set(chosen)
            found[shard] = [i for i, name in enumerate(ids) if kept is None or name in kept]
        return found

    def _load(self, payload: Payload) -> None:
        load_payload(self._model, self._manifest, payload)
        prepare(self._device, self._spec.recipe.threads)

    def _per_sample(self, samples: Samples) -> PerSample:
        return per_sample(self._model, samples, self._task, device=self._device)


def _joined(parts: list[PerSample], which: Mapping[int, Sequence[int] | NDArray[np.intp]]) -> PerSample:
    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(parts[i], name)[np.asarray(which[i], np.intp)] for i in sorted(which)])

    return PerSample(column("losses"), column("scores"), column("confidences"), column("labels"), parts[0].classes)
