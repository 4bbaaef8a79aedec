"""Rapid retraining (Liu et al. 2022): go back to the model from before a target first took part, then retrain.

Clients retrain on the remaining data with second-order steps (routine `curvature`). Their updates are averaged as in
training. With several targets, the earliest decides. A checkpoint is named by the round that made it; 0 is the initial
model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic import Field

from puf_common.errors import NotNow
from puf_server.core.methods.base import Method, Options, Requirements, Step, StoredHistory, View
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import Combine, CombineRule, RoundKind
from puf_server.core.state.state import State


class RapidOptions(Options):
    rounds: int = Field(0, ge=0, description="rounds to train from the checkpoint; 0: as many as were trained since")
    lr: float = Field(1e-3, gt=0, description="rate of the retraining clients")
    beta1: float = Field(0.9, ge=0, lt=1, description="momentum of the gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="momentum of the squared curvature")
    block: int = Field(3, ge=1, description="neighbouring weights that share one curvature value")
    eps: float = Field(
        1e-4,
        gt=0,
        description="added to the curvature; not published: chosen by accuracy on digits, smaller values are less stable",
    )

    def routine(self) -> dict[str, float]:
        """The options of the client's routine `curvature`."""
        return {"beta1": self.beta1, "beta2": self.beta2, "block": float(self.block), "eps": self.eps}


class Rapid(Method):
    name = "rapid"
    summary = "back to the model before the target first took part, then second-order steps without it"
    requires = Requirements(history=True, full_participation=True, single_round=False, retained_take_part=True)
    stores = StoredHistory(checkpoints=True, survives_rewrite=True)
    options_type = RapidOptions
    options: RapidOptions
    rewrites = True
    plain_averages = True

    def step(self, view: View) -> Step | None:
        method_state = view.started.method_state or self._plan(view)
        number = int(method_state["checkpoint"]) + view.started.step + 1
        if not method_state["rounds"]:
            return Step(base=int(method_state["base"]), combine=Combine(rule=CombineRule.KEEP), last=True)
        if not view.enough:
            return None
        return Step(
            base=view.model if view.started.step else int(method_state["base"]),
            assignments=view.ordinary(
                view.cohort(drawn_as=number), routine="curvature", options=self.options.routine()
            ),
            lr=self.options.lr,
            plain=False,
            last=view.started.step + 1 >= int(method_state["rounds"]),
            method_state=method_state,
        )

    def _plan(self, view: View) -> dict[str, int]:
        """The first model and the number of rounds. Read once: training may be extended meanwhile."""
        kept = checkpoints(view.state)
        first = {m.name: m.first_round for m in view.state.members.values() if m.first_round}
        found = rollback(first, {t.member.name for t in view.targets}, kept)
        number = max(kept) if found is None else found
        since = sum(r.kind is RoundKind.TRAIN and r.number > number for r in view.state.records.values())
        return {"base": kept[number], "checkpoint": number, "rounds": self.options.rounds or since}


def checkpoints(state: State) -> dict[int, int]:
    """Usable versions by the round that made them. Versions that contain a forgotten client are not usable."""
    usable = (ModelStatus.READY, ModelStatus.UNLEARNED)
    return {m.round: m.version for m in state.models.values() if m.status in usable and m.version <= state.version}


def rollback(
    first_rounds: Mapping[str, int], targets: Collection[str], kept: Collection[int] | None = None
) -> int | None:
    """The newest checkpoint without any target; None if no target ever took part.

    `first_rounds` maps every client that took part to its first round. `kept` are the existing checkpoints; None: all.
    """
    first = [first_rounds[t] for t in targets if t in first_rounds]
    if not first:
        return None
    newest = min(first) - 1
    if kept is None:
        return newest
    clean = [c for c in kept if c <= newest]
    if not clean:
        raise NotNow(f"no checkpoint from before round {newest + 1} exists: the model cannot go back")
    return max(clean)
