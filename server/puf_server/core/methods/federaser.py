"""FedEraser (Liu et al. 2021): the training over again in short, along new directions with the old step lengths.

    w~ <- w_0 + sum over retained p_k U_k                                    the first retained round, as it was stored
    w~ <- w~ + sum over retained p_k |U_k| * U^_k / |U^_k|                   every later one, U^_k from a short training

p_k = n_k / n over the retained clients that have a stored update of that round. After the first round only the norms
|U_k| are needed. The published sum has a further 1 / (K - 1), which shrinks every step; it is not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

__all__ = ["FederaserOptions", "calibrated", "factor", "retained_rounds", "shares"]


class FederaserOptions(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    interval: int = Field(1, ge=1, description="Delta t: every so many rounds one is retained")
    calibration_epochs: float = Field(0.5, gt=0, description="E_cal: local epochs of a calibrating client")
    norms: Literal["model", "tensor"] = Field(
        "model", description="length of a client's whole update, or of each tensor by itself as the public code has it"
    )


def retained_rounds(rounds: int, interval: int) -> tuple[int, ...]:
    """t_1 = 1 and then every `interval` rounds: floor(rounds / interval) of them."""
    return tuple(1 + j * interval for j in range(rounds // interval))


def factor(stored: float, found: float) -> float:
    """|U_k| / |U^_k|: a direction of no length gives no step."""
    return stored / found if found > 0 else 0.0


def shares(samples: Mapping[str, int]) -> dict[str, float]:
    """p_k over those who are there: who has no stored update of a round is left out before."""
    n = sum(samples.values())
    return {client: count / n for client, count in samples.items()}


def calibrated(w: NDArray[Any], steps: Sequence[tuple[NDArray[Any], float, float]]) -> NDArray[np.float64]:
    """w~ + sum of p_k * factor_k * U^_k over (U^_k, factor_k, p_k) in a fixed order."""
    total = np.zeros(w.shape, np.float64)
    for update, scale, share in steps:
        total += share * (scale * update.astype(np.float64))
    return w.astype(np.float64) + total
