"""FUKD (Wu et al. 2022): subtract what a client ever contributed, then repair by distillation on unlabeled data.

    A_k = sum over rounds of p_k Delta_k        kept for every client, as applied: one vector each, not one per round
    M'  = M - sum over targets of A_u           as if they had sent zeros; the others are not rescaled

By linearity w_0 plus all A_k is the model itself, as long as every round since w_0 was an average of updates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

__all__ = ["FukdOptions", "accumulate", "erase"]


class FukdOptions(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The distillation's values are not published; these are this project's choice."""

    temperature: float = Field(3.0, gt=0, description="of teacher and student alike")
    epochs: float = Field(5.0, gt=0, description="passes over the unlabeled data")
    lr: float = Field(1e-3, gt=0, description="rate of Adam in distillation")

    def routine(self) -> dict[str, float]:
        """The options of the client's routine `distill`."""
        return {"temperature": self.temperature}


def accumulate(total: NDArray[Any] | None, update: NDArray[Any], weight: float) -> NDArray[np.float64]:
    """A_k after one more round. `weight` is what the update was multiplied with when it entered the model."""
    contribution = weight * update.astype(np.float64)
    return contribution if total is None else total.astype(np.float64) + contribution


def erase(model: NDArray[Any], sums: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
    """The model without what these clients contributed. Parameters only, never buffers."""
    left = model.astype(np.float64)
    for total in sums:
        left = left - total.astype(np.float64)
    return left
