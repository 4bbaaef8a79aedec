"""FUKD (Wu et al. 2022): subtract all updates of a client, then repair by distillation on unlabeled data.

    A_k = sum over rounds of p_k Delta_k        stored for every client as it entered the model: one vector per client
    M'  = M - sum over targets of A_u           as if the targets had sent zeros; other updates are not rescaled

By linearity w_0 plus all A_k is the model, as long as every round since w_0 was an average of updates. Subtraction ignores
that later updates depended on the erased ones. Distillation repairs that, with the old model as teacher. A client that
holds unlabeled public data and does not train runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from puf_common.tensors.manifest import Manifest
from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.methods.base import Method, Options, Requirements, Step, StoredHistory, View
from puf_server.core.methods.blocks import Rule, UpdateBlock, installed
from puf_server.core.state.members import Member
from puf_server.core.state.rounds import Assignment, Combine, CombineRule, Part
from puf_server.core.state.state import State
from puf_server.core.state.tickets import RequestForm, Scope, Ticket


class FukdOptions(Options):
    """The published text states no values for distillation. These are the choice of this project."""

    temperature: float = Field(3.0, gt=0, description="temperature of teacher and student")
    epochs: float = Field(5.0, gt=0, description="passes over the unlabeled data")
    lr: float = Field(1e-3, gt=0, description="rate of Adam in distillation")

    def routine(self) -> dict[str, float]:
        """The options of the client's routine `distill`."""
        return {"temperature": self.temperature}


class Fukd(Method):
    name = "fukd"
    summary = "the target's updates are subtracted; distillation on unlabeled data repairs the model"
    requires = Requirements(history=True, task_agnostic=False, auxiliary_data=True, scopes=(Scope.CLIENT,))
    stores = StoredHistory(sums=True)
    options_type = FukdOptions
    options: FukdOptions
    plain_averages = True

    def refuse(self, client: str, form: RequestForm, state: State, config: FederationConfig) -> str | None:
        refused = super().refuse(client, form, state, config)
        member = state.members.get(client)
        if refused is not None or member is None or member.first_round == 0:
            return refused
        kept = state.history.get(_key(member))
        if kept is None or kept.since > member.first_round:
            since = f"only since round {kept.since}" if kept else "not at all"
            return (
                f"fukd needs the sum of all updates of {client} since round {member.first_round}, which was stored "
                f"{since}: choose retrain, not or puf"
            )
        if not any(m.unlabeled for m in state.members.values()):
            return (
                "fukd needs unlabeled data, but no client holds any: start a client as distiller, or choose retrain, not "
                "or puf"
            )
        return None

    def ready(self, ticket: Ticket, view: View) -> bool:
        return bool(roster.distillers(view.state, view.presence, view.config, view.now))

    def step(self, view: View) -> Step | None:
        if view.started.step == 0:
            sums = (_key(t.member) for t in view.targets)
            kept = tuple(sorted(key for key in sums if key in view.state.history))
            return Step(base=view.state.version, combine=Combine(rule=CombineRule.ERASE, history=kept))
        distillers = roster.distillers(view.state, view.presence, view.config, view.now)
        if not distillers:
            return None
        assignment = Assignment(
            client=distillers[0].name,
            membership=distillers[0].membership,
            part=Part.MAIN,
            samples=distillers[0].unlabeled,
            epochs=self.options.epochs,
            routine="distill",
            options=self.options.routine(),
            aux=view.state.version,
        )
        combine = Combine(rule=CombineRule.INSTALL)
        return Step(base=view.model, assignments=(assignment,), combine=combine, lr=self.options.lr, last=True)

    def rule(self, combine: Combine, manifest: Manifest, updates: Sequence[UpdateBlock]) -> Rule:
        if combine.rule == CombineRule.INSTALL:
            return installed
        return lambda block: (
            erase(block.w, [p.u for p in block.updates if p.u is not None])
            if block.tensor.role == "parameter"
            else block.w
        )


def _key(member: Member) -> str:
    return f"sums/{member.name}/{member.membership}"


def accumulate(total: NDArray[Any], update: NDArray[Any], weight: float) -> NDArray[np.float64]:
    """A_k after one more round. `weight` is the factor of the update when it entered the model."""
    added: NDArray[np.float64] = total.astype(np.float64) + weight * update.astype(np.float64)
    return added


def erase(model: NDArray[Any], sums: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
    """The model without these sums. For parameters only."""
    left = model.astype(np.float64)
    for total in sums:
        left = left - total.astype(np.float64)
    return left
