"""MoDe (Zhao et al. 2023): momentum degradation and memory guidance.

    M_de <- M_de + sum over retained p_k Delta_k      a model that began at random and never sees a target
    M    <- lambda * M + (1 - lambda) * M_de          in the first R_d of R_m rounds
    M    <- M + sum over all (n_i / n) Delta_i        targets learn M_de's labels, retained clients the true ones

Blending two networks that began apart means little by itself; the guidance does most of the work.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

__all__ = ["AUTHORS_CODE", "ModeOptions", "blend", "phases"]

Phase = Literal["degrade", "guide"]


class ModeOptions(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    keep: float = Field(0.95, ge=0, le=1, description="lambda: weight of the model when the degraded one is blended in")
    degrade_rounds: int = Field(6, ge=0, description="R_d: how many of the rounds degrade before they guide")
    rounds: int = Field(10, ge=1, description="R_m: rounds of guidance")
    lr_guide_target: float = Field(5e-4, gt=0, description="rate of targets in guidance (the authors' code: 0.1)")
    lr_guide_retain: float = Field(5e-4, gt=0, description="rate of retained clients in guidance")

    @model_validator(mode="after")
    def _degradation_is_guided(self) -> Self:
        if self.degrade_rounds > self.rounds:
            raise ValueError(f"degrade_rounds {self.degrade_rounds} must be at most rounds {self.rounds}")
        return self


# The paper states one rate of guidance; in its authors' code targets have another.
AUTHORS_CODE = ModeOptions(lr_guide_target=0.1, lr_guide_retain=5e-4)


def blend(model: NDArray[Any], degraded: NDArray[Any], keep: float) -> NDArray[np.float64]:
    """lambda * M + (1 - lambda) * M_de; at 1 and 0 exactly one of the two. Parameters only, never buffers."""
    return keep * model.astype(np.float64) + (1 - keep) * degraded.astype(np.float64)


def phases(options: ModeOptions) -> tuple[Phase, ...]:
    """The rounds in order; a blend belongs to every degradation."""
    return tuple(
        phase
        for r in range(1, options.rounds + 1)
        for phase in (("degrade", "guide") if r <= options.degrade_rounds else ("guide",))
    )
