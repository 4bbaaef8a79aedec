"""Retrain: the same initial model and number of rounds, without the target. The reference for all other methods.

Its rounds draw clients and decay the rate as rounds 1, 2, ... do. The result has the same bits as the model of a
federation that the target never joined, with the same clients.
"""

from __future__ import annotations

from pydantic import Field

from puf_server.core.methods.base import Method, Options, Requirements, Step, View
from puf_server.core.state.rounds import Combine, CombineRule


class RetrainOptions(Options):
    rounds: int = Field(0, ge=0, description="rounds to train again; 0: as many as were trained so far")


class Retrain(Method):
    name = "retrain"
    summary = "all rounds again from w_0 without the target"
    requires = Requirements(single_round=False, retained_take_part=True)
    options_type = RetrainOptions
    options: RetrainOptions
    rewrites = True
    plain_averages = True

    def step(self, view: View) -> Step | None:
        # The number of rounds is read once: training may be extended meanwhile.
        rounds = int(view.started.method_state.get("rounds", self.options.rounds or view.state.trained))
        number = view.started.step + 1
        if rounds == 0:
            return Step(base=0, combine=Combine(rule=CombineRule.KEEP), last=True)
        if not view.enough:
            return None
        return Step(
            base=0 if number == 1 else view.model,
            assignments=view.ordinary(view.cohort(drawn_as=number)),
            lr=view.config.recipe.lr_at(number),
            stream=number,
            plain=False,
            last=number >= rounds,
            method_state={"rounds": rounds},
        )

    @property
    def recovery_bounds(self) -> tuple[int, int | None]:
        """None: the model is as good as training without the target can make it."""
        return 0, 0
