"""What a model knows: test accuracy, forget accuracy and both membership attacks, as an outsider with all data sees it.

Only an experiment has all clients' data in one place; a federation never does.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from puf_client import routines
from puf_client.data import load_data, test_set
from puf_client.data.samples import count
from puf_client.routines import PerSample, Samples
from puf_client.tasks import task_named
from puf_common.models import build_any, load_payload, manifest_of
from puf_common.wire import Payload
from puf_lab import attacks
from puf_lab.metrics import percent
from puf_lab.setting import Setting
from puf_lab.tables import Measured

__all__ = ["Evaluator"]

_CPU = torch.device("cpu")


class Evaluator:
    """Measures models of one setting."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._model = build_any(setting.model, setting.model_options, setting.recipe.seed)
        self._manifest = manifest_of(self._model)
        self._task = task_named(setting.task)

    @cached_property
    def _train(self) -> list[Samples]:
        s = self._setting
        return [routines.resident(load_data(s.data, s.context(shard)).train_plain, _CPU) for shard in range(s.clients)]

    @cached_property
    def _test(self) -> Samples:
        return routines.resident(test_set(self._setting.data, self._setting.context(0)), _CPU)

    def accuracies(self, payload: Payload, targets: Collection[int]) -> tuple[float, float]:
        """Test and forget accuracy in per cent."""
        self._load(payload)
        forget = np.concatenate([self._look(self._train[t]).scores for t in sorted(targets)])
        return percent(self._look(self._test).scores), percent(forget)

    def measure(self, payload: Payload, targets: Collection[int]) -> Measured:
        self._load(payload)
        seen = [self._look(samples) for samples in self._train]
        test = self._look(self._test)
        forget = _joined(seen, targets)
        retained = _joined(seen, [i for i in range(len(seen)) if i not in targets])
        return Measured(
            test=percent(test.scores),
            forget=percent(forget.scores),
            song=attacks.song(
                retained.confidences, test.confidences, forget.confidences, seed=self._setting.recipe.seed
            ),
            yeom=attacks.yeom(retained.losses, forget.losses),
        )

    def samples(self, target: int) -> int:
        return count(self._train[target])

    def _load(self, payload: Payload) -> None:
        load_payload(self._model, self._manifest, payload)
        routines.prepare(_CPU, self._setting.recipe.threads)

    def _look(self, samples: Samples) -> PerSample:
        return routines.per_sample(self._model, samples, self._task, device=_CPU)


def _joined(parts: list[PerSample], which: Collection[int]) -> PerSample:
    def column(name: str) -> NDArray[np.float64]:
        return np.concatenate([getattr(parts[i], name) for i in sorted(which)])

    return PerSample(column("losses"), column("scores"), column("confidences"))
