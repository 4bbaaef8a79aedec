"""Natural: nothing is unlearned; training goes on without the target, and the model forgets what it will."""

from __future__ import annotations

from pydantic import Field

from puf_server.core.methods.base import Method, Options, Requirements, Step, View
from puf_server.core.state.rounds import Combine, CombineRule

__all__ = ["Natural", "NaturalOptions"]


class NaturalOptions(Options):
    # The model is as good as before from the first round on, so the stop rule says nothing: the number is fixed.
    rounds: int = Field(5, ge=0, description="rounds without the target before the request is completed")


class Natural(Method):
    name = "natural"
    summary = "no unlearning: training goes on without the target for a fixed number of rounds"
    requires = Requirements(selective=False)
    options_type = NaturalOptions
    options: NaturalOptions

    def step(self, view: View) -> Step:
        """The model as it is, under a version of its own: the old one goes when the request is completed."""
        return Step(base=view.state.version, combine=Combine(rule=CombineRule.KEEP), last=True)

    @property
    def recovery_bounds(self) -> tuple[int, int | None]:
        return self.options.rounds, self.options.rounds
