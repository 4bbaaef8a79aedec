"""MoDe (Zhao et al. 2023): momentum degradation and memory guidance.

    M_de <- M_de + sum over retained p_k Delta_k      a model that began at random and never sees a target
    M    <- lambda * M + (1 - lambda) * M_de          in the first R_d of R_m rounds
    M    <- M + sum over all (n_i / n) Delta_i        targets learn M_de's labels, retained clients the true ones

Blending two networks of different origin has little effect by itself; guidance has most of it.

M_de begins as w_0 with the values of every tensor permuted: another draw from the distribution of w_0. The server can
make it from any model without the code of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from puf_common.seeds import derive
from puf_common.tensors.manifest import Manifest
from puf_server.core.methods.base import Method, Options, Requirements, Step, Target, View
from puf_server.core.methods.blocks import Rule, TensorBlock, UpdateBlock
from puf_server.core.state.rounds import Assignment, Combine, CombineRule

Phase = Literal["fresh", "degrade", "blend", "guide"]

# The name of the degradation model in a job.
_DEGRADED = "degraded"
# The rate for targets in the authors' code. The paper states one rate for all clients.
_AUTHORS_TARGET_RATE = 0.1


class ModeOptions(Options):
    keep: float = Field(0.95, ge=0, le=1, description="lambda: weight of the model when the degraded one is blended in")
    degrade_rounds: int = Field(6, ge=0, description="R_d: how many of the rounds degrade before they guide")
    rounds: int = Field(10, ge=1, description="R_m: rounds of guidance")
    lr_degrade: float = Field(0.0, ge=0, description="rate of degradation, without decay; 0: the recipe's of round 1")
    lr_guide_target: float = Field(5e-4, gt=0, description="rate of targets in guidance (the authors' code: 0.1)")
    lr_guide_retain: float = Field(5e-4, gt=0, description="rate of retained clients in guidance")
    compat: Literal["paper", "author-code"] = Field(
        "paper", description="author-code: targets guide at 0.1 unless lr_guide_target says otherwise"
    )

    @model_validator(mode="after")
    def _degradation_is_guided(self) -> Self:
        if self.degrade_rounds > self.rounds:
            raise ValueError(f"degrade_rounds {self.degrade_rounds} must be at most rounds {self.rounds}")
        return self

    @property
    def rates(self) -> tuple[float, float]:
        """The rates of targets and of retained clients in guidance."""
        authors = self.compat == "author-code" and "lr_guide_target" not in self.model_fields_set
        return _AUTHORS_TARGET_RATE if authors else self.lr_guide_target, self.lr_guide_retain


class MoDe(Method):
    name = "mode"
    summary = "the model moves towards one without the target, whose labels the target learns"
    requires = Requirements(
        task_agnostic=False, single_round=False, simultaneous=False, target_takes_part=True, retained_take_part=True
    )
    options_type = ModeOptions
    options: ModeOptions

    def step(self, view: View) -> Step | None:
        o, job = self.options, view.started
        planned = phases(o)
        phase = planned[job.step]
        if phase == "fresh":
            seed = float(view.config.recipe.seed % 2**53)
            return Step(base=0, combine=Combine(rule=CombineRule.FRESH, options={"seed": seed}), into=_DEGRADED)
        degraded = job.aux[_DEGRADED]
        if phase == "blend":
            return Step(base=view.model, combine=Combine(rule=CombineRule.BLEND, others={_DEGRADED: degraded}))
        if not view.enough:
            return None
        if phase == "degrade":
            lr = o.lr_degrade or view.config.recipe.lr
            return Step(base=degraded, assignments=view.ordinary(view.cohort()), lr=lr, plain=False, into=_DEGRADED)
        of_targets, of_retained = o.rates
        targets = {t.member.name for t in view.targets}
        others = [m for m in view.cohort() if m.name not in targets]
        guided = [_guided(t, view, degraded, of_targets) for t in view.targets]
        assignments = (*view.ordinary(others, lr=of_retained), *guided)
        last = job.step == len(planned) - 1
        return Step(
            base=view.model, assignments=tuple(sorted(assignments, key=lambda s: s.client)), lr=of_retained, last=last
        )

    def enough_came(self, view: View, retained: int) -> bool:
        """Guidance needs retained clients beside the target."""
        plan = view.config.plan
        targets = {t.member.name for t in view.targets}
        others = [m for m in view.retained if m.name not in targets]
        return retained >= ceil(plan.participation * plan.quorum * len(others))

    def rule(self, combine: Combine, manifest: Manifest, updates: Sequence[UpdateBlock]) -> Rule:
        if combine.rule == CombineRule.FRESH:
            return permuted(int(combine.options["seed"]))
        keep = self.options.keep
        return lambda b: blend(b.w, b.others[_DEGRADED], keep) if b.tensor.role == "parameter" else b.w


def phases(options: ModeOptions) -> tuple[Phase, ...]:
    """The steps in order. A blend follows every degradation."""
    first: tuple[Phase, ...] = ("degrade", "blend", "guide")
    later: tuple[Phase, ...] = ("guide",)
    rounds = range(1, options.rounds + 1)
    return ("fresh", *(phase for r in rounds for phase in (first if r <= options.degrade_rounds else later)))


def blend(model: NDArray[Any], degraded: NDArray[Any], keep: float) -> NDArray[np.float64]:
    """lambda * M + (1 - lambda) * M_de, exact at 0 and 1. For parameters only."""
    return keep * model.astype(np.float64) + (1 - keep) * degraded.astype(np.float64)


def permuted(seed: int) -> Callable[[TensorBlock], NDArray[Any]]:
    """A rule that permutes the values of every parameter, block by block, by the seed."""
    blocks: dict[str, int] = {}

    def deal(block: TensorBlock) -> NDArray[Any]:
        if block.tensor.role != "parameter":
            return block.w
        name = block.tensor.name
        blocks[name] = blocks.get(name, -1) + 1
        order = np.random.default_rng(derive(seed, "degradation model", name, blocks[name])).permutation(block.w.size)
        return block.w[order]

    return deal


def _guided(target: Target, view: View, degraded: int, lr: float) -> Assignment:
    """Guidance with all samples of a target: those to forget get the degradation model's labels, others keep theirs."""
    return target.assignment(
        samples=target.all_samples,
        epochs=float(view.config.recipe.epochs),
        routine="guide",
        lr=lr,
        aux=degraded,
    )
