"""Whether a strategy averages linearly. Only then does a negated update take away what the update would have added."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from puf_common.errors import UsageError
from puf_embedded.arithmetic import Arrays, weighted_mean
from puf_flower.wire import arrays_of, record_of

# Why known strategies are refused.
REFUSED = {
    "FedMedian": "it takes medians",
    "FedTrimmedAvg": "it leaves the largest and smallest values out",
    "Krum": "it chooses one update",
    "MultiKrum": "it chooses some updates",
    "Bulyan": "it leaves values out",
    "QFedAvg": "it weights updates by their loss",
    "FedAdagrad": "it normalises the mean",
    "FedAdam": "it normalises the mean",
    "FedYogi": "it normalises the mean",
    "FedXgbBagging": "it collects trees",
    "FedXgbCyclic": "it has no mean",
    "DifferentialPrivacyClientSideFixedClipping": "it clips updates and adds noise",
    "DifferentialPrivacyServerSideFixedClipping": "it clips updates and adds noise",
    "DifferentialPrivacyClientSideAdaptiveClipping": "it clips updates and adds noise",
    "DifferentialPrivacyServerSideAdaptiveClipping": "it clips updates and adds noise",
}
_HINT = "Wrap a strategy of flwr.serverapp.strategy whose mean is linear, for example FedAvg or FedProx"
_WEIGHTS = (1, 2, 5)


def require_linear(strategy: Any) -> None:
    """Raises UsageError if the strategy is not known to average linearly. Tries a copy of it on three small models."""
    name = type(strategy).__name__
    if not isinstance(strategy, Strategy):
        raise UsageError(f"{name} is no strategy of flwr.serverapp.strategy. {_HINT}")
    for kind in type(strategy).__mro__:
        if kind.__name__ in REFUSED and kind.__module__.startswith("flwr."):
            raise UsageError(f"PUF cannot unlearn with {name}, because {REFUSED[kind.__name__]}. {_HINT}")
    try:
        trial = copy.deepcopy(strategy)
        if hasattr(trial, "train_metrics_aggr_fn"):
            trial.train_metrics_aggr_fn = lambda *_: MetricRecord()
        found = _mean_by(trial)
    except Exception as error:  # any error of a strategy that PUF does not know
        raise UsageError(
            f"PUF cannot unlearn with {name}: its aggregate_train failed on a test ({error}). {_HINT}"
        ) from None
    expected = weighted_mean(list(zip(_WEIGHTS, _models(), strict=True)))
    if found is None or not all(np.allclose(found[k], v, rtol=1e-4, atol=1e-5) for k, v in expected.items()):
        raise UsageError(
            f"PUF cannot unlearn with {name}, because its aggregate_train is not the weighted mean. {_HINT}"
        )


def _models() -> list[dict[str, Any]]:
    """Small models. The last one is far away, as a negated update can be."""
    draw = np.random.default_rng(7)
    near = [
        {"a": draw.normal(size=(3, 2)).astype(np.float32), "b": draw.normal(size=4).astype(np.float32)}
        for _ in range(3)
    ]
    return [*near[:2], {name: -50 * value for name, value in near[2].items()}]


@dataclass(frozen=True)
class _Reply:
    """What a strategy reads of a reply. A real message cannot be made outside a run."""

    content: RecordDict
    metadata: Any

    def has_error(self) -> bool:
        return False


def _mean_by(strategy: Strategy) -> Arrays | None:
    key = getattr(strategy, "weighted_by_key", "num-examples")
    replies: list[Any] = [
        _Reply(
            RecordDict({"arrays": record_of(model), "metrics": MetricRecord({key: weight})}),
            SimpleNamespace(src_node_id=number + 1),
        )
        for number, (weight, model) in enumerate(zip(_WEIGHTS, _models(), strict=True))
    ]
    arrays, _ = strategy.aggregate_train(1, replies)
    return None if arrays is None else arrays_of(arrays)
