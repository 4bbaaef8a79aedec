"""The filter of the site that leaves. It needs differences of weights (`ParamsType.DIFF`)."""

from __future__ import annotations

from typing import Any

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants

from puf_flare.combine import negated

# In the meta data of a result.
NEGATED, LEFT = "puf_negated", "puf_left"


class NegateFilter(DXOFilter):  # type: ignore[misc]
    """Negates the site's update of one round (FLARE counts from 0), and withholds every later update.

    job.to(NegateFilter(in_round=5), "site-3", tasks=["train"], filter_type=FilterType.TASK_RESULT)

    The round decides, not the filter's memory: FLARE may start a site's process again between rounds.
    """

    def __init__(self, in_round: int, kappa: float = 2.0, buffers: list[str] | None = None) -> None:
        super().__init__([DataKind.WEIGHT_DIFF], None)
        if kappa <= 0:
            raise ValueError(f"kappa must be above 0, not {kappa}")
        self.in_round, self.kappa, self.buffers = in_round, kappa, buffers

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> Any:
        number = shareable.get_header(AppConstants.CURRENT_ROUND, fl_ctx.get_prop(AppConstants.CURRENT_ROUND))
        if number is None:
            raise ValueError("the result names no round: PUF cannot tell when the site leaves")
        if number < self.in_round:
            return None
        leaves_now = number == self.in_round
        dxo.data = negated(dxo.data, self.kappa if leaves_now else 0.0, self.buffers)
        if leaves_now:
            dxo.set_meta_prop(NEGATED, self.kappa)
            self.log_info(fl_ctx, f"PUF: this site's update of round {number} is negated with kappa {self.kappa:g}")
        else:
            dxo.set_meta_prop(LEFT, True)
        return dxo
