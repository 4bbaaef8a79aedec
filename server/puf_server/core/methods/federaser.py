"""FedEraser (Liu et al. 2021): past rounds are replayed without the target, with calibrated updates.

For each replayed round t_1 = 1, t_(j+1) = t_j + delta_t the server stored the norms of every client's update U_k, and of
the first round the updates themselves.

    w~ <- w_0 + sum p_k U_k^(t_1)                           no client trains
    w~ <- w~ + sum p_k |U_k^(t_j)| * U^_k / |U^_k|          U^_k: update of client k from w~ in E_cal epochs

with p_k = n_k / sum of n over the clients that answer. The stored norm gives the length, the new update the direction.
Stored norms refer to the model before the round. The authors' code takes the model after it, which lets the target into
the step size. After the first round only norms are needed: C * R numbers and C updates are stored, where the paper counts
C * R updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from puf_common.tensors.manifest import Manifest
from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.methods.base import Method, Options, Requirements, Step, StoredHistory, View
from puf_server.core.methods.blocks import Rule, TensorBlock, UpdateBlock, mean_of_buffers
from puf_server.core.state.rounds import Combine, CombineRule, HistoryRecord
from puf_server.core.state.state import State
from puf_server.core.state.tickets import RequestForm, Scope


class FedEraserOptions(Options):
    delta_t: int = Field(1, ge=1, description="replay one of this many rounds")
    epochs: float = Field(0.5, gt=0, description="local epochs of a calibration (E_cal); 0.5 is half of the batches")
    per_tensor: bool = Field(False, description="use the norm of every tensor instead of the whole update's")


class FedEraser(Method):
    name = "federaser"
    summary = "past rounds replayed without the target: stored lengths, new directions"
    requires = Requirements(
        history=True, full_participation=True, single_round=False, retained_take_part=True, scopes=(Scope.CLIENT,)
    )
    stores = StoredHistory(norms=True, first_updates=True, survives_rewrite=True)
    options_type = FedEraserOptions
    options: FedEraserOptions
    rewrites = True
    plain_averages = True
    measures = True

    def refuse(self, client: str, form: RequestForm, state: State, config: FederationConfig) -> str | None:
        refused = super().refuse(client, form, state, config)
        member = state.members.get(client)
        if refused is not None or member is None or member.first_round == 0:
            return refused
        first = min(r.number for r in state.records.values() if r.kind in ("train", "recover"))
        kept = {(r.client, r.round) for r in state.history.values() if r.kind == "norms"}
        others = [m for m in roster.retained(state) if m.first_round == first and m.name != client]
        if not kept or any((m.name, first) not in kept for m in others):
            return (
                "federaser needs the history of every round since the first, but this federation stored none of round "
                f"{first}: choose retrain, not or puf"
            )
        return None

    def step(self, view: View) -> Step | None:
        # The round's number, not a count: a client that is forgotten meanwhile can remove a round.
        done = int(view.started.method_state.get("replayed", 0))
        base = view.model if view.started.step else 0
        coming = [kept for kept in replayed(view.state, self.options.delta_t) if kept[0].round > done]
        first = [(key, r) for key, r in sorted(view.state.history.items()) if _counts(view.state, r, "first-updates")]
        if not done and first:
            number = first[0][1].round
            last = not any(kept[0].round > number for kept in coming)
            combine = Combine(history=tuple(key for key, _ in first))
            return Step(base=base, combine=combine, last=last, method_state={"replayed": number})
        if not coming:
            return Step(base=base, combine=Combine(rule=CombineRule.KEEP), last=True)
        number, lengths = coming[0][0].round, {r.client: r.norms for r in coming[0]}
        members = [m for m in view.retained if m.name in lengths and view.alive(m.name)]
        if not members or not view.enough:
            return None
        return Step(
            base=base,
            assignments=view.ordinary(members, epochs=self.options.epochs),
            combine=Combine(rule=CombineRule.CALIBRATE, values={m.name: lengths[m.name] for m in members}),
            lr=view.config.recipe.lr_at(number),
            plain=False,
            last=len(coming) == 1,
            method_state={"replayed": number},
        )

    def rule(self, combine: Combine, manifest: Manifest, updates: Sequence[UpdateBlock]) -> Rule:
        if combine.rule == CombineRule.KEEP:
            return super().rule(combine, manifest, updates)
        by = {
            p.client: f
            for p in updates
            if (f := factors(combine.values[p.client], p.norms, per_tensor=self.options.per_tensor)) is not None
        }
        n = sum(p.samples for p in updates if p.client in by)
        return lambda block: calibrated(block, by, n)


def replayed(state: State, delta_t: int) -> list[list[HistoryRecord]]:
    """The records of each replayed round, oldest round first, without clients that asked to be forgotten."""
    numbers = sorted({r.round for r in state.history.values() if r.kind == "norms"})[::delta_t]
    by: dict[int, list[HistoryRecord]] = {number: [] for number in numbers}
    for _, r in sorted(state.history.items()):
        if r.round in by and _counts(state, r, "norms"):
            by[r.round].append(r)
    return [kept for kept in by.values() if kept]


def _counts(state: State, kept: HistoryRecord, kind: str) -> bool:
    member = state.members.get(kept.client)
    same = member is not None and member.membership == kept.membership
    return same and kept.kind == kind and kept.client not in state.kept_out()


def factors(stored: Sequence[float], fresh: Sequence[float], *, per_tensor: bool) -> tuple[float, ...] | None:
    """The factor for each parameter of a new update; None for an update of norm 0, which has no direction."""
    whole = sqrt(fsum(x * x for x in fresh))
    if whole == 0.0:
        return None
    if per_tensor:
        return tuple(s / f if f else 0.0 for s, f in zip(stored, fresh, strict=True))
    return (sqrt(fsum(x * x for x in stored)) / whole,) * len(fresh)


def calibrated(block: TensorBlock, factor: Mapping[str, tuple[float, ...]], n: int) -> NDArray[Any]:
    """w~ + sum p_k * factor_k * U^_k over the clients with a factor."""
    if block.tensor.role != "parameter":
        return mean_of_buffers(block)
    total = np.zeros(block.w.size, np.float64)
    for update in block.updates:
        if update.client in factor and update.u is not None:
            total += np.multiply(
                update.u, factor[update.client][block.parameter] * update.samples / n, dtype=np.float64
            )
    return block.w.astype(np.float64) + total
