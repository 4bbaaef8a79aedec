"""Natural: no unlearning. Training continues without the target, and the model forgets what training overwrites."""

from __future__ import annotations

from pydantic import Field

from puf_server.core.methods.base import Method, Options, Requirements, Step, View
from puf_server.core.state.rounds import Combine, CombineRule


class NaturalOptions(Options):
    # The model has not lost quality, so the stop rule does not apply: the number is fixed.
    rounds: int = Field(5, ge=0, description="rounds without the target before the request is completed")


class Natural(Method):
    name = "natural"
    summary = "no unlearning: training continues without the target for a fixed number of rounds"
    requires = Requirements(selective=False)
    options_type = NaturalOptions
    options: NaturalOptions

    def step(self, view: View) -> Step:
        """The model as it is, as a new version. The old version is deleted when the request is completed."""
        return Step(base=view.state.version, combine=Combine(rule=CombineRule.KEEP), last=True)

    @property
    def recovery_bounds(self) -> tuple[int, int | None]:
        return self.options.rounds, self.options.rounds
