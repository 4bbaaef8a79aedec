"""SIFU (Fraboni et al. 2024): back to the last model that the target moved little, plus noise, then training goes on.

The server stores, for each ordinary round s and client c, how far one round with c lies from the same round without it:

    spread(s, c) = eta_s * p_c / (1 - p_c) * |Delta_c - sum_i p_i Delta_i|        p_i = n_i / n of the round

and eta_s * |Delta_c| if c was alone. The distance of the model of round t from one that never saw c is then bounded by

    Psi(t, c) = sum over s <= t of B^(t - s) * spread(s, c)

with B the growth of a distance in one round: 1 for convex losses and small rates. For other losses B is not known, and the
bound is an assumption. The server goes back to the newest model with Psi(t, c) <= Psi* and adds noise:

    w <- w_t + N(0, sigma^2)        Psi* = sigma * epsilon / sqrt(2 * (ln 1.25 - ln delta))

Where the bound holds, the noisy model is (epsilon, delta)-indistinguishable from one that never saw c. The noise comes from
a secret stream of the server. Recovery repeats as many rounds as were lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log, sqrt

import numpy as np
from pydantic import Field

from puf_common.tensors.manifest import Manifest
from puf_server.core.config import FederationConfig
from puf_server.core.methods.base import Method, Options, Requirements, Step, StoredHistory, View
from puf_server.core.methods.blocks import Rule, UpdateBlock
from puf_server.core.methods.rapid_retraining import checkpoints
from puf_server.core.state.members import Member
from puf_server.core.state.rounds import Combine, CombineRule, RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import RequestForm, Scope


class SifuOptions(Options):
    epsilon: float = Field(10.0, gt=0, description="epsilon of the statement about the noisy model")
    delta: float = Field(0.01, gt=0, lt=1, description="delta of that statement")
    sigma: float = Field(0.01, gt=0, description="standard deviation of the noise; larger: fewer rounds are lost")
    growth: float = Field(1.0, ge=1, description="B: growth of a distance in one round; 1 assumes a convex loss")
    rounds: int = Field(0, ge=0, description="rounds after the noise; 0: as many as were lost")

    @property
    def budget(self) -> float:
        """Psi*: the largest distance that the noise hides."""
        return self.sigma * self.epsilon / sqrt(2 * (log(1.25) - log(self.delta)))


class Sifu(Method):
    name = "sifu"
    summary = "back to the last model that the target moved little, plus noise, then training goes on"
    requires = Requirements(history=True, full_participation=True, simultaneous=False, scopes=(Scope.CLIENT,))
    stores = StoredHistory(spreads=True, checkpoints=True)
    options_type = SifuOptions
    options: SifuOptions
    rewrites = True
    plain_averages = True

    def refuse(self, client: str, form: RequestForm, state: State, config: FederationConfig) -> str | None:
        refused = super().refuse(client, form, state, config)
        member = state.members.get(client)
        if refused is not None or member is None or member.first_round == 0:
            return refused
        stored = ordinary_rounds(state)
        missing = [n for n in training_rounds(state) if n >= member.first_round and n not in stored]
        if missing:
            return (
                f"sifu needs the distances of {client} in round {missing[0]}, which were not stored: choose retrain, "
                "not or puf"
            )
        return None

    def step(self, view: View) -> Step:
        [target] = view.targets
        number = self.checkpoint(view.state, target.member)
        lost = sum(made > number for made in ordinary_rounds(view.state))
        return Step(
            base=checkpoints(view.state)[number],
            combine=Combine(rule=CombineRule.NOISE, options={"sigma": self.options.sigma}),
            last=True,
            method_state={"checkpoint": number, "rounds": self.options.rounds or lost},
        )

    def checkpoint(self, state: State, member: Member) -> int:
        """The newest round whose model is stored and near enough to one without the client; 0 is the initial model.

        Rounds of other methods are not bounded, so that no model after one is used.
        """
        of_client, all_rounds = spreads(state, member), ordinary_rounds(state)
        others = [r.number for r in state.records.values() if r.kind is RoundKind.UNLEARN and r.contributions]
        usable = [n for n in checkpoints(state) if not others or n < min(others)]
        near = [n for n in usable if bound(of_client, all_rounds, n, self.options.growth) <= self.options.budget]
        return max(near, default=0)

    def rebuilt_from(self, method_state: Mapping[str, float | int | str]) -> int:
        return int(method_state["checkpoint"])

    def recovery_rounds(self, method_state: Mapping[str, float | int | str]) -> tuple[int, int | None]:
        rounds = int(method_state["rounds"])
        return rounds, rounds

    def rule(self, combine: Combine, manifest: Manifest, updates: Sequence[UpdateBlock]) -> Rule:
        sigma = combine.options["sigma"]
        return lambda block: block.w if block.noise is None else block.w.astype(np.float64) + sigma * block.noise


def spreads(state: State, member: Member) -> dict[int, float]:
    """The stored distances of a client by round."""
    return {
        r.round: r.norms[0]
        for r in state.history.values()
        if r.kind == "spreads" and (r.client, r.membership) == (member.name, member.membership)
    }


def ordinary_rounds(state: State) -> list[int]:
    """The rounds that made the present model and have stored distances."""
    return sorted({r.round for r in state.history.values() if r.kind == "spreads"})


def training_rounds(state: State) -> list[int]:
    """The rounds with updates of clients that made the present model. A method that went back left others out."""
    made = {record.version: record for record in state.records.values()}
    found, version = [], state.version
    while version in made:
        record = made[version]
        if record.kind in (RoundKind.TRAIN, RoundKind.RECOVER) and record.contributions:
            found.append(record.number)
        version = record.base
    return sorted(found)


def bound(of_client: Mapping[int, float], all_rounds: Sequence[int], number: int, growth: float) -> float:
    """Psi of the model of round `number`."""
    return sum(
        growth ** sum(s < other <= number for other in all_rounds) * value
        for s, value in sorted(of_client.items())
        if s <= number
    )
