"""NegMerge (Kim et al. 2024): the target negates the part of its task vectors on whose signs all of its runs agree.

    tau_k = w_k - w              K trainings of the target from w, each with another learning rate and random stream
    tau   = mean_k tau_k         where all tau_k have the same sign, else 0
    w     <- w - strength * sum over targets (n_u / n) tau

The target trains and merges (routine `merge`) and sends one update, which enters negated like an update of PUF-Special.
The published method fine-tunes with other augmentations, rates and decays; a client has the rates and random streams.
"""

from __future__ import annotations

from pydantic import Field

from puf_server.core.methods.base import Method, Options, Requirements, Step, Target, View
from puf_server.core.state.rounds import Assignment


class NegMergeOptions(Options):
    runs: int = Field(5, ge=2, le=100, description="K: trainings of the target that are merged")
    spread: float = Field(
        2.0, ge=1, description="the rates of the runs lie between rate / spread and rate * spread, at equal ratios"
    )
    epochs: float = Field(1.0, gt=0, description="local epochs of each run")
    strength: float = Field(
        2.0, gt=0, description="factor of the merged update (published: chosen on validation data; 2 as PUF's kappa)"
    )


class NegMerge(Method):
    name = "negmerge"
    summary = "the target negates the entries of its update whose signs agree in several trainings"
    requires = Requirements(target_takes_part=True)
    options_type = NegMergeOptions
    options: NegMergeOptions

    def step(self, view: View) -> Step:
        n = sum(t.forget_samples for t in view.targets)
        assignments = tuple(sorted((self._assignment(t) for t in view.targets), key=lambda s: s.client))
        return Step(base=view.state.version, assignments=assignments, denominator=n, last=True)

    def _assignment(self, target: Target) -> Assignment:
        return target.assignment(
            samples=target.forget_samples,
            epochs=self.options.epochs * self.options.runs,
            routine="merge",
            options={"runs": float(self.options.runs), "spread": self.options.spread},
            scale=-self.options.strength,
            negated=True,
        )
