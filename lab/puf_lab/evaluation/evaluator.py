"""What a model does with every sample there is, as an outsider with all data sees it.

Only an experiment has all clients' data in one place; a federation never does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from puf_client.data import ClientData, load_data, test_set
from puf_client.data.samples import Samples, count, resident, select
from puf_client.routines.evaluate import PerSample, per_sample
from puf_client.routines.train import prepare
from puf_client.tasks import task_named
from puf_client.worker.devices import choose
from puf_common.models.module_tensors import load_payload, manifest_of
from puf_common.models.networks import build_any
from puf_common.tensors.chunks import Payload
from puf_lab.demo.outcome import Measured
from puf_lab.evaluation import attacks
from puf_lab.evaluation.metrics import percent
from puf_lab.experiments.setting import Setting

__all__ = ["Evaluator", "Forget", "Look"]

# Whose samples are forgotten, and which: None for all of them.
Forget = Mapping[int, Sequence[str] | None]


@dataclass(frozen=True)
class Look:
    """One model, on the data it is judged by. `reference` is the same of the model retrained without the target."""

    test: PerSample
    retained: PerSample
    forget: PerSample
    seed: int
    reference: Look | None = None


class Evaluator:
    """Measures models of one setting."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._model = build_any(setting.model, setting.model_options, setting.recipe.seed)
        self._manifest = manifest_of(self._model)
        self._task = task_named(setting.task)
        self._device = choose(setting.device).device

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self._model.parameters())

    @cached_property
    def clients(self) -> list[ClientData]:
        s = self._setting
        return [load_data(s.data, s.context(shard)) for shard in range(s.clients)]

    @cached_property
    def _train(self) -> list[Samples]:
        return [resident(data.train_plain, self._device) for data in self.clients]

    @cached_property
    def _test(self) -> Samples:
        return resident(test_set(self._setting.data, self._setting.context(0)), self._device)

    def accuracies(self, payload: Payload, targets: Collection[int] | Forget) -> tuple[float, float]:
        """Test and forget accuracy in per cent."""
        self._load(payload)
        parts = self._forgotten(targets)
        forget = np.concatenate([self._look(select(self._train[t], parts[t])).scores for t in parts])
        return percent(self._look(self._test).scores), percent(forget)

    def look(self, payload: Payload, targets: Collection[int] | Forget, reference: Look | None = None) -> Look:
        """Everything that metrics are made of."""
        self._load(payload)
        parts = self._forgotten(targets)
        seen = [self._look(samples) for samples in self._train]
        rest = {
            shard: np.setdiff1d(np.arange(len(part.scores)), parts.get(shard, [])) for shard, part in enumerate(seen)
        }
        return Look(
            test=self._look(self._test),
            retained=_joined(seen, rest),
            forget=_joined(seen, parts),
            seed=self._setting.recipe.seed,
            reference=reference,
        )

    def measure(self, payload: Payload, targets: Collection[int]) -> Measured:
        look = self.look(payload, targets)
        return Measured(
            test=percent(look.test.scores),
            forget=percent(look.forget.scores),
            song=attacks.song(
                look.retained.confidences, look.test.confidences, look.forget.confidences, seed=look.seed
            ),
            yeom=attacks.yeom(look.retained.losses, look.forget.losses),
        )

    def samples(self, target: int) -> int:
        return count(self._train[target])

    def _forgotten(self, targets: Collection[int] | Forget) -> dict[int, list[int]]:
        """Positions of the forgotten samples, by shard in order."""
        wanted: Forget = targets if isinstance(targets, Mapping) else dict.fromkeys(targets)
        found: dict[int, list[int]] = {}
        for shard in sorted(wanted):
            ids, chosen = self.clients[shard].ids, wanted[shard]
            kept = None if chosen is None else set(chosen)
            found[shard] = [i for i, name in enumerate(ids) if kept is None or name in kept]
        return found

    def _load(self, payload: Payload) -> None:
        load_payload(self._model, self._manifest, payload)
        prepare(self._device, self._setting.recipe.threads)

    def _look(self, samples: Samples) -> PerSample:
        return per_sample(self._model, samples, self._task, device=self._device)


def _joined(parts: list[PerSample], which: Mapping[int, Sequence[int] | NDArray[np.intp]]) -> PerSample:
    def column(name: str) -> NDArray[np.float64]:
        return np.concatenate([getattr(parts[i], name)[np.asarray(which[i], np.intp)] for i in sorted(which)])

    return PerSample(column("losses"), column("scores"), column("confidences"))
