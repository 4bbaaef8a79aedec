"""FedAU (Gu et al. 2024), after training: the targets' auxiliary heads are mixed into the model's.

    W = (1 - alpha) * W_l + alpha * mean over targets of W_a        the backbone is not touched

Published texts differ on which head weighs 0.04: the code gives it to the original one, as the method's own alpha of 0.9
suggests, so `alpha_aux` is 0.96 here. Read the other way round it hardly forgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from puf_common.errors import UsageError

__all__ = ["FedauOptions", "mix_heads"]


class FedauOptions(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    alpha_aux: float = Field(
        0.96, ge=0, le=1, description="weight of the auxiliary heads (0.04 is a misreading, 0.9 the method's own)"
    )
    epochs: float = Field(10.0, gt=0, description="passes over the target's features")
    lr: float = Field(0.0, ge=0, description="rate of the auxiliary head; 0: that of the current round")
    weight_decay: float = Field(1e-3, ge=0, description="weight decay of the auxiliary head")
    init_std: float = Field(0.01, ge=0, description="of the fresh head's weights")

    def routine(self) -> dict[str, float]:
        """The options of the client's routine `aux_head`."""
        return {"weight_decay": self.weight_decay, "init_std": self.init_std}


def mix_heads(head: NDArray[Any], auxiliary: Sequence[NDArray[Any]], alpha_aux: float) -> NDArray[np.float64]:
    """Heads weigh alike, whatever their targets' sizes. At 0 the head to the bit."""
    if not auxiliary:
        raise UsageError("there is no auxiliary head to mix in")
    if alpha_aux == 0:  # a sum would lose the sign of -0.0
        return head.astype(np.float64)
    mean = np.mean(auxiliary, axis=0, dtype=np.float64)
    mixed: NDArray[np.float64] = (1 - alpha_aux) * head.astype(np.float64) + alpha_aux * mean
    return mixed
