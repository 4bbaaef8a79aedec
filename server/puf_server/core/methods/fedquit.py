"""FedQUIT (Mora et al. 2024): the target distils from the model with the score of the true class taken away.

    teacher   z = w(x), with the entry of the true class replaced by the smallest entry of the sample
    student   minimises KL(softmax(z) || softmax(w'(x))) over the target's data, from w' = w
    model     w' of the target; of several targets the mean of their models by samples

The target does it (routine `quit`) with the model as its own teacher. Other classes keep their scores, so that the model
keeps what it knows about them. Buffers stay as they are: they would bring in the target's data.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from puf_common.tensors.manifest import Manifest
from puf_server.core.config import FederationConfig
from puf_server.core.methods.base import Method, Options, Requirements, Step, Target, View
from puf_server.core.methods.blocks import Rule, UpdateBlock, weighted_mean
from puf_server.core.state.rounds import Assignment, Combine, CombineRule


class FedQuitOptions(Options):
    lr: float = Field(1e-3, gt=0, description="rate of distillation (published: 1e-3 for IID data, 1e-4 otherwise)")
    epochs: float = Field(1.0, gt=0, description="passes over the target's data")
    batch_size: int = Field(32, ge=0, description="batch size of distillation; 0: the recipe's")
    adam: bool = Field(True, description="Adam, as published, where the recipe has sgd; false: the recipe's optimizer")
    recovery_lr: float = Field(0.0, ge=0, description="rate of recovery; 0: that of the round (published: 0.1)")


class FedQuit(Method):
    name = "fedquit"
    summary = "the target distils from the model, with the score of the true class taken away"
    requires = Requirements(task_agnostic=False, target_takes_part=True)
    options_type = FedQuitOptions
    options: FedQuitOptions

    def step(self, view: View) -> Step:
        assignments = tuple(sorted((self._assignment(t) for t in view.targets), key=lambda s: s.client))
        return Step(
            base=view.state.version, assignments=assignments, combine=Combine(rule=CombineRule.INSTALL), last=True
        )

    def _assignment(self, target: Target) -> Assignment:
        return target.assignment(
            samples=target.forget_samples,
            epochs=self.options.epochs,
            routine="quit",
            options={"batch_size": float(self.options.batch_size), "adam": float(self.options.adam)},
            lr=self.options.lr,
        )

    def rate(self, config: FederationConfig) -> float | None:
        return self.options.recovery_lr or None

    def rule(self, combine: Combine, manifest: Manifest, updates: Sequence[UpdateBlock]) -> Rule:
        return weighted_mean
