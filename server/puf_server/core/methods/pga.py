"""PGA (Halimi et al. 2022): the target climbs its own loss inside a ball, and what it arrives at becomes the model.

    w_ref = (w - p * w_u) / (1 - p)      the ball's centre: the others' average in the round that made w

The target does the work, from its own last local model w_u (`ascend` in the client). The server installs w + Delta, and
where it still has the target's last update it can look whether the result lies in the ball before it does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from puf_common.errors import UsageError

__all__ = ["PgaOptions", "in_ball", "length", "reference"]

# What float32 may lose on the way to the server.
_TOLERANCE = 1e-4


class PgaOptions(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """The published values, with distances in plain L2."""

    lr: float = Field(0.01, gt=0, description="rate of the ascent")
    epochs: float = Field(5.0, gt=0, description="at most so many passes over the target's data")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of the ascent")
    clip: float = Field(5.0, ge=0, description="largest norm of a gradient over all parameters; 0: none")
    batch_size: int = Field(0, ge=0, description="batch size of the ascent; 0: the recipe's (published: 512 or 1024)")
    delta_l2: float = Field(
        0.0, ge=0, description="radius of the ball; 0: a third of the mean distance to 10 random models"
    )
    squared_radius: bool = Field(
        False, description="derive the radius as the public code does: sqrt(mean squared distance / 3)"
    )
    stop_distance: float = Field(
        6.5,
        ge=0,
        description="stop at this distance from the target's last model; 0: never (published: 9 for IID data)",
    )

    def routine(self, share: float) -> dict[str, float]:
        """The options of the client's routine `ascent` for a target with this share of the last round's samples."""
        mine = self.model_dump(
            include={"momentum", "clip", "batch_size", "delta_l2", "squared_radius", "stop_distance"}
        )
        return {"share": share, **{name: float(value) for name, value in mine.items()}}


def reference(w: NDArray[Any], local: NDArray[Any], share: float) -> NDArray[np.float64]:
    """The mean of the others: (1 - p) * w_ref + p * w_u = w."""
    if not 0 <= share < 1:
        raise UsageError(f"PGA needs others beside the target: its share of the last round is {share:g}")
    return (w.astype(np.float64) - share * local.astype(np.float64)) / (1 - share)


def length(blocks: Iterable[NDArray[Any]]) -> float:
    """L2 norm of a vector that comes in blocks."""
    return math.sqrt(math.fsum(float(np.square(block, dtype=np.float64).sum()) for block in blocks))


def in_ball(distance: float, radius: float) -> bool:
    return distance <= radius * (1 + _TOLERANCE)
