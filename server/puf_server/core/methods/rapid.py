"""Rapid retraining (Liu et al. 2022): back to before a target first took part, and on from there with curvature.

Clients retrain on what remains with a step of second order (`descend_by_curvature` in the client); their updates are
averaged as always. The earliest of several targets decides how far back. A checkpoint is named by the round that made it,
0 for the initial model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic import BaseModel, Field

from puf_common.errors import NotNow

__all__ = ["RapidOptions", "rollback"]


class RapidOptions(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    lr: float = Field(1e-3, gt=0, description="rate of the retraining clients")
    beta1: float = Field(0.9, ge=0, lt=1, description="momentum of the gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="momentum of the squared curvature")
    block: int = Field(3, ge=1, description="neighbouring weights that share one curvature")
    eps: float = Field(1e-4, gt=0, description="added to the curvature; not published, smaller is less stable")

    def routine(self) -> dict[str, float]:
        """The options of the client's routine `curvature`."""
        return {"beta1": self.beta1, "beta2": self.beta2, "block": float(self.block), "eps": self.eps}


def rollback(
    first_rounds: Mapping[str, int], targets: Collection[str], kept: Collection[int] | None = None
) -> int | None:
    """The newest checkpoint that none of the targets had a part in; None if none of them ever took part.

    `first_rounds` has the first round of everybody who took part. `kept` are the checkpoints there are; None: all.
    """
    first = [first_rounds[t] for t in targets if t in first_rounds]
    if not first:
        return None
    newest = min(first) - 1
    if kept is None:
        return newest
    clean = [c for c in kept if c <= newest]
    if not clean:
        raise NotNow(f"no checkpoint from before round {newest + 1} is kept: there is nothing to go back to")
    return max(clean)
