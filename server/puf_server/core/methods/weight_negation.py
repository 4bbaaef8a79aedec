"""NoT (Khalil et al. 2025): unlearning by weight negation.

    W_1 <- -W_1     the weight of the first layer; everything else as it is

The server does it alone, without messages and without client data. Recovery without the target follows. The negated model
is the same for every target: recovery decides what is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from puf_common.tensors.manifest import Manifest
from puf_server.core.methods.base import Method, Options, Requirements, Step, View
from puf_server.core.methods.blocks import Rule, UpdateBlock
from puf_server.core.methods.layers import first_layer
from puf_server.core.state.rounds import Combine, CombineRule


class NoTOptions(Options):
    include_bias: bool = Field(False, description="also negate the bias of the first layer")


class NoT(Method):
    name = "not"
    summary = "the server negates the first layer; retained clients recover the rest"
    requires = Requirements(selective=False)
    options_type = NoTOptions
    options: NoTOptions

    def step(self, view: View) -> Step:
        return Step(base=view.state.version, combine=Combine(rule=CombineRule.NEGATE), last=True)

    def rule(self, combine: Combine, manifest: Manifest, updates: Sequence[UpdateBlock]) -> Rule:
        chosen = first_layer(manifest, include_bias=self.options.include_bias)
        return lambda block: np.negative(block.w) if block.tensor.name in chosen else block.w
