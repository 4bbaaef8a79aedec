"""FedAU (Gu et al. 2024), after training: the targets' auxiliary heads are mixed into the model's head.

    W = (1 - alpha) * W_l + alpha * mean over targets of W_a        the backbone does not change

Published texts differ on which head weighs 0.04. The authors' code gives it to the original head, as the published alpha
of 0.9 suggests, so `alpha_aux` is 0.96 here. With the other reading the model hardly forgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from puf_common.errors import InvalidArgument
from puf_common.tensors.manifest import Manifest
from puf_server.core.methods.base import Method, Options, Requirements, Step, Target, View
from puf_server.core.methods.blocks import Rule, TensorBlock, UpdateBlock
from puf_server.core.methods.layers import HEAD, last_layer
from puf_server.core.state.rounds import Assignment, Combine, CombineRule


class FedauOptions(Options):
    alpha_aux: float = Field(
        0.96, ge=0, le=1, description="weight of the auxiliary heads (published: 0.9; 0.04 is a misreading)"
    )
    epochs: float = Field(10.0, gt=0, description="passes over the target's features")
    lr: float = Field(0.0, ge=0, description="rate of the auxiliary head; 0: that of the current round")
    weight_decay: float = Field(1e-3, ge=0, description="weight decay of the auxiliary head")
    init_std: float = Field(0.01, ge=0, description="standard deviation of the new head's initial weights")

    def routine(self) -> dict[str, float]:
        """The options of the client's routine `aux_head`."""
        return {"weight_decay": self.weight_decay, "init_std": self.init_std}


class FedAU(Method):
    name = "fedau"
    summary = "heads that the targets train on random labels are mixed into the model's head"
    requires = Requirements(task_agnostic=False, target_takes_part=True)
    options_type = FedauOptions
    options: FedauOptions

    def step(self, view: View) -> Step:
        assignments = tuple(sorted((self._assignment(t) for t in view.targets), key=lambda s: s.client))
        return Step(base=view.state.version, assignments=assignments, combine=Combine(rule=CombineRule.MIX), last=True)

    def _assignment(self, target: Target) -> Assignment:
        """A head that learns random labels for the samples to forget, and true labels for the rest."""
        return target.assignment(
            samples=target.all_samples,
            epochs=self.options.epochs,
            routine="aux_head",
            options=self.options.routine(),
            lr=self.options.lr or None,
            outputs=(HEAD,),
        )

    def rule(self, combine: Combine, manifest: Manifest, updates: Sequence[UpdateBlock]) -> Rule:
        head = last_layer(manifest)

        def mixed(block: TensorBlock) -> NDArray[Any]:
            if block.tensor.name not in head:
                return block.w
            heads = [block.w.astype(np.float64) + p.u.astype(np.float64) for p in block.updates if p.u is not None]
            return mix_heads(block.w, heads, self.options.alpha_aux)

        return mixed


def mix_heads(head: NDArray[Any], auxiliary: Sequence[NDArray[Any]], alpha_aux: float) -> NDArray[np.float64]:
    """The mixed head. All auxiliary heads have the same weight. With alpha_aux 0 it has the bits of the head."""
    if not auxiliary:
        raise InvalidArgument("there is no auxiliary head to mix in")
    if alpha_aux == 0:  # a sum would lose the sign of -0.0
        return head.astype(np.float64)
    mean = np.mean(auxiliary, axis=0, dtype=np.float64)
    mixed: NDArray[np.float64] = (1 - alpha_aux) * head.astype(np.float64) + alpha_aux * mean
    return mixed
