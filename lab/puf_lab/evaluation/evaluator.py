"""Outputs of a model for every sample of an experiment.

Only an experiment has the data of all clients in one place. A federation never does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from puf_client.data import ClientData, load_data, test_set
from puf_client.data.samples import Samples, count, resident, select
from puf_client.routines.evaluate import per_sample
from puf_client.routines.per_sample import PerSample
from puf_client.routines.train import prepare
from puf_client.tasks import task_named
from puf_client.worker.devices import choose
from puf_client.worker.trainer import acceleration_of
from puf_common.models.module_tensors import load_payload, manifest_of, trained
from puf_common.models.networks import build_any
from puf_common.tensors.chunks import Payload
from puf_lab.evaluation.comparison import percent
from puf_lab.spec.federation import FederationSpec
from puf_server.rpc.messages import recipe

# Models on the line between two models at which the loss is measured, with both ends.
LINE_POINTS = 5
# The forgotten samples of each target. None stands for all of them.
ForgetSet = Mapping[int, Sequence[str] | None]


@dataclass(frozen=True)
class ModelOutputs:
    """Outputs of one model on test, retained and forget data.

    `reference` has the mean outputs of models that were retrained without the same target, with other seeds. `original`
    and `retrained` are the outputs of these two models, `sets` those on the named evaluation sets.
    """

    test: PerSample
    retained: PerSample
    forget: PerSample
    seed: int
    reference: ModelOutputs | None = None
    original: ModelOutputs | None = None
    retrained: ModelOutputs | None = None
    sets: Mapping[str, PerSample] = field(default_factory=dict)
    moved: float | None = None
    """L2 distance of the parameters from those before unlearning."""
    line: tuple[float, ...] = ()
    """Mean loss on the forget data at equal steps from the model before unlearning to this one."""


@dataclass(frozen=True)
class Beside:
    """What all models of a target are compared with."""

    reference: ModelOutputs
    original: ModelOutputs
    retrained: ModelOutputs
    before: bytes
    """The model before unlearning."""
    sets: Mapping[str, Samples]


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
        config = spec.server_config()
        self._model = build_any(spec.model.name, config.model_options, spec.model_seed)
        self._manifest = manifest_of(self._model)
        self._task = task_named(spec.task)
        self._device = choose(spec.device).device
        self._how = acceleration_of(recipe(config))

    def with_frozen_of(self, spec: FederationSpec) -> Evaluator:
        """An evaluator of the same data for models of a spec with another seed, whose frozen parameters may be others."""
        if all(p.requires_grad for p in self._model.parameters()):
            return self
        other = copy(self)
        other._model = build_any(spec.model.name, spec.server_config().model_options, spec.model_seed)
        return other

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in trained(self._model))

    @cached_property
    def clients(self) -> list[ClientData]:
        return [load_data(self._spec.data.name, self._spec.context(shard)) for shard in range(self._spec.clients)]

    @cached_property
    def _train(self) -> list[Samples]:
        return [resident(data.train_plain, self._device, limit_bytes=self._share) for data in self.clients]

    @cached_property
    def _test(self) -> Samples:
        return resident(test_set(self._spec.data.name, self._spec.context(0)), self._device, limit_bytes=self._share)

    @property
    def _share(self) -> int:
        """Bytes on the device for each client's data and for the test set."""
        return self._spec.data_bytes // (self._spec.clients + 1)

    def check(self) -> None:
        """Raises if the test set is missing or does not fit the model and the task."""
        self._per_sample(select(self._test, range(min(2, count(self._test)))))

    def accuracies(self, payload: Payload, targets: Collection[int] | ForgetSet) -> tuple[float, float]:
        """Test and forget accuracy in per cent."""
        self._load(payload)
        parts = self._positions(targets)
        forget = np.concatenate([self._per_sample(select(self._train[t], parts[t])).scores for t in parts])
        return percent(self._per_sample(self._test).scores), percent(forget)

    def outputs(
        self, payload: Payload, targets: Collection[int] | ForgetSet, beside: Beside | None = None
    ) -> ModelOutputs:
        """The outputs from which metrics are computed."""
        self._load(payload)
        parts = self._positions(targets)
        seen = [self._per_sample(samples) for samples in self._train]
        rest = {
            shard: np.setdiff1d(np.arange(len(part.scores)), parts.get(shard, [])) for shard, part in enumerate(seen)
        }
        found = ModelOutputs(
            test=self._per_sample(self._test),
            retained=_joined(seen, rest),
            forget=_joined(seen, parts),
            seed=self._spec.recipe.seed,
        )
        if beside is None:
            return found
        sets = {name: self._per_sample(samples) for name, samples in beside.sets.items()}
        line, moved = self._line(beside.before, payload, parts)
        return replace(
            found,
            reference=beside.reference,
            original=beside.original,
            retrained=beside.retrained,
            sets=sets,
            moved=moved,
            line=line,
        )

    def _line(
        self, before: Payload, payload: Payload, parts: Mapping[int, Sequence[int]]
    ) -> tuple[tuple[float, ...], float]:
        """Losses on the forget data along the line between two models, and its length. Buffers are those of the second."""
        ends = []
        for each in (before, payload):
            self._load(each)
            ends.append([p.detach().clone() for p in trained(self._model)])
        moved = sum(float((b.double() - a.double()).square().sum()) for a, b in zip(*ends, strict=True)) ** 0.5
        forget = [select(self._train[shard], positions) for shard, positions in parts.items()]
        losses = []
        for step in range(LINE_POINTS):
            share = step / (LINE_POINTS - 1)
            with torch.no_grad():
                for parameter, a, b in zip(trained(self._model), *ends, strict=True):
                    parameter.copy_(a + (b - a) * share)
            losses.append(float(np.concatenate([self._per_sample(samples).losses for samples in forget]).mean()))
        return tuple(losses), moved

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
        return per_sample(self._model, samples, self._task, device=self._device, how=self._how)


def _joined(parts: list[PerSample], which: Mapping[int, Sequence[int] | NDArray[np.intp]]) -> PerSample:
    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(parts[i], name)[np.asarray(which[i], np.intp)] for i in sorted(which)])

    return PerSample(column("losses"), column("scores"), column("confidences"), column("labels"), parts[0].classes)
