"""The metrics of an experiment by name. Each is a function of a model's outputs.

A metric of the user's code is `package.module:name`: a function that takes `ModelOutputs` and returns a number, or several
numbers by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from puf_common.config import plugins
from puf_common.errors import UsageError
from puf_lab.evaluation import attacks
from puf_lab.evaluation.comparison import percent
from puf_lab.evaluation.three_sample import three_sample_test
from puf_lab.spec.code_digest import code_digest
from puf_lab.spec.user_code import digest

if TYPE_CHECKING:
    from puf_lab.evaluation.evaluator import ModelOutputs

Value = float | Mapping[str, float]


@dataclass(frozen=True)
class Metric:
    """`tasks` names the tasks for which the metric is defined; empty means all."""

    label: str
    function: Callable[[ModelOutputs], Value]
    tasks: tuple[str, ...] = ()


def _song(outputs: ModelOutputs) -> float:
    members, others, forget = (part.confidences for part in (outputs.retained, outputs.test, outputs.forget))
    return attacks.song(members, others, forget, seed=outputs.seed)


def _rmia(outputs: ModelOutputs) -> Mapping[str, float]:
    reference = outputs.reference or outputs
    found = attacks.rmia(
        (outputs.forget.confidences, reference.forget.confidences),
        (outputs.test.confidences, reference.test.confidences),
    )
    return {
        "rmia": 100 * found.auc,
        "rmia_member_at_1": 100 * found.member_at_1,
        "rmia_member_at_01": 100 * found.member_at_01,
        "rmia_traced_at_1": 100 * found.traced_at_1,
    }


def _three_samples(outputs: ModelOutputs) -> Mapping[str, float]:
    if outputs.original is None or outputs.retrained is None:
        return {}
    models = (outputs, outputs.retrained, outputs.original)
    found = three_sample_test(*(model.forget.confidences for model in models), seed=outputs.seed)
    return {"closer": found.closer, "closer_p": found.p}


def _way(outputs: ModelOutputs) -> Mapping[str, float]:
    """How far the model is from the one before unlearning, the losses on the line between both, and their rise above it."""
    if outputs.moved is None:
        return {}
    last = len(outputs.line) - 1
    straight = [outputs.line[0] + (outputs.line[-1] - outputs.line[0]) * i / last for i in range(last + 1)]
    rise = max(loss - level for loss, level in zip(outputs.line, straight, strict=True))
    return {"moved": outputs.moved, "line_rise": rise, **{f"line_{i}": loss for i, loss in enumerate(outputs.line)}}


def _sets(outputs: ModelOutputs) -> Mapping[str, float]:
    """The score on every named evaluation set. That of the set "backdoor" is the attack's success rate."""
    return {name: percent(values.scores) for name, values in outputs.sets.items()}


_CLASSES = ("classification",)
# Beginnings of the names of numbers that describe a model by itself. They are not compared with those of Retrain.
DESCRIPTIVE = ("closer", "moved", "line_", "rmia_")
METRICS: dict[str, Metric] = {
    "test": Metric("test", lambda outputs: percent(outputs.test.scores)),
    "forget": Metric("forget", lambda outputs: percent(outputs.forget.scores)),
    "song": Metric("MIA Song", _song, _CLASSES),
    "yeom": Metric("MIA Yeom", lambda o: attacks.yeom(o.retained.losses, o.forget.losses), _CLASSES),
    "rmia": Metric("RMIA AUC", _rmia, _CLASSES),
    "loss": Metric("forget loss", lambda outputs: float(np.mean(outputs.forget.losses))),
    "three-sample": Metric("three-sample test", _three_samples),
    "way": Metric("way from the original", _way),
    "sets": Metric("evaluation sets", _sets),
}


def names_for(task: str, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """The metrics of a task, and those of the user's code. A task of the user's code states confidences, so it has all."""
    return (*(name for name, m in METRICS.items() if not m.tasks or task in m.tasks or ":" in task), *extra)


def stamps(names: Sequence[str]) -> list[str]:
    """Metrics with the digest of their code. A changed stamp means that the metric must be computed again."""
    return [f"{name} {code_digest('measuring') if name in METRICS else digest(name)}" for name in names]


def compute(outputs: ModelOutputs, names: Sequence[str]) -> dict[str, float]:
    """The named metrics. A metric with several numbers names them itself."""
    found: dict[str, float] = {}
    for name in names:
        if name in METRICS:
            value = METRICS[name].function(outputs)
        elif ":" in name:
            value = plugins.call(plugins.load(name), outputs)
        else:
            raise UsageError(f"there is no metric {name!r}; use package.module:name for your own")
        several = value if isinstance(value, Mapping) else {name.rpartition(":")[2]: value}
        for key, number in several.items():
            try:
                found[key] = float(number)
            except (TypeError, ValueError):
                raise UsageError(f"metric {name} must return a number, or numbers by name, not {number!r}") from None
    return found
