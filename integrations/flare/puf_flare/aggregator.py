"""The aggregator: FedAvg over differences, a negated update where a site leaves, and nothing of that site afterwards."""

from __future__ import annotations

from typing import Any

from nvflare.apis.dxo import MetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

from puf_flare.combine import Contribution, combined
from puf_flare.filters import LEFT, NEGATED


class PufAggregator(ModelAggregator):  # type: ignore[misc]
    """For `FedAvg(aggregator=...)` with differences. `forgotten` are sites that left in earlier jobs."""

    def __init__(
        self, mode: str = "regular", forgotten: list[str] | None = None, buffers: list[str] | None = None
    ) -> None:
        super().__init__()
        if mode not in ("regular", "special"):
            raise ValueError(f"mode must be regular or special, not {mode}")
        self.mode, self.forgotten, self.buffers = mode, list(forgotten or ()), buffers
        self._parts: list[Contribution] = []

    def accept_model(self, model: FLModel) -> None:
        meta: dict[str, Any] = model.meta or {}
        site = str(meta.get("client_name", "unknown"))
        if model.params_type != ParamsType.DIFF:
            raise ValueError(f"{site} sent whole weights. PUF needs differences: send FLModel(params_type=DIFF)")
        if site in self.forgotten or meta.get(LEFT):
            if site in self.forgotten:
                self.info(f"PUF: the update of {site} is left out: the site was forgotten")
            else:
                self.warning(
                    f"PUF: {site} left, but no negated update of it came: choose a later round in its NegateFilter"
                )
            return
        samples = float(meta.get(MetaKey.NUM_STEPS_CURRENT_ROUND, 1.0))
        self._parts.append(Contribution(site, model.params, samples, negated=NEGATED in meta))

    def aggregate_model(self) -> FLModel:
        result = combined(self._parts, special=self.mode == "special", buffers=self.buffers)
        left = [p.site for p in self._parts if p.negated]
        if left:
            self.forgotten += left
            self.info(f"PUF: the updates of {', '.join(left)} were negated; later updates of these sites are left out")
        self.reset_stats()
        return FLModel(params=result, params_type=ParamsType.DIFF)

    def reset_stats(self) -> None:
        self._parts = []
