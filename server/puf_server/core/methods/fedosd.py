"""FedOSD (Pan et al. 2025): unlearning steps at a right angle to all retained updates, and recovery that does not return.

Unlearning, `rounds` times. The targets train on the loss -log(1 - p_y / 2) (routine `doubt`), which pushes the
probability of the true class down without growing beyond bounds. Retained clients train as always.

    g = sum over targets (n_u / n) Delta_u        A: the retained updates, one per row
    d = g - A^T (A A^T)^+ A g                     the part of g at a right angle to all of them
    w <- w + step * d * |g| / |d|

Recovery, with a = w - w_before: every update loses its part along a and keeps its length.

    u_i = Delta_i - (Delta_i . a / |a|^2) a       w <- w + sum (n_i / n) u_i * |Delta_i| / |u_i|

Both are linear in the vectors. The factors follow from inner products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, sqrt

import numpy as np
from pydantic import Field

from puf_server.core.methods.base import Method, Options, Products, Requirements, Step, Target, View
from puf_server.core.methods.blocks import UpdateBlock
from puf_server.core.methods.products import vector_of
from puf_server.core.state.rounds import Assignment, Combine, CombineRule

# The name of the model from before unlearning among the vectors of a recovery round.
_BEFORE = "before"
# Singular values of A A^T below this share of the largest one count as 0.
_RANK = 1e-10


class FedOsdOptions(Options):
    rounds: int = Field(10, ge=1, description="unlearning rounds (published: up to 100, with 10 local steps at 0.025)")
    lr: float = Field(0.0, ge=0, description="rate of the targets; 0: that of the round")
    step: float = Field(1.0, gt=0, description="factor of the unlearning direction")
    project: bool = Field(True, description="in recovery, remove the part of each update along w - w_before")


class FedOsd(Method):
    name = "fedosd"
    summary = "unlearning steps at a right angle to the retained updates; recovery does not go back"
    requires = Requirements(task_agnostic=False, single_round=False, target_takes_part=True, retained_take_part=True)
    options_type = FedOsdOptions
    options: FedOsdOptions

    def step(self, view: View) -> Step | None:
        if not view.enough:
            return None
        retained = view.ordinary(view.cohort())
        targets = [self._assignment(t, view) for t in view.targets]
        return Step(
            base=view.model,
            assignments=tuple(sorted((*retained, *targets), key=lambda s: (s.client, s.part))),
            combine=Combine(rule=CombineRule.LINEAR),
            last=view.started.step + 1 >= self.options.rounds,
        )

    def _assignment(self, target: Target, view: View) -> Assignment:
        return target.assignment(
            samples=target.forget_samples,
            epochs=float(view.config.recipe.epochs),
            routine="doubt",
            lr=self.options.lr or None,
        )

    def enough_came(self, view: View, retained: int) -> bool:
        """The direction protects the clients whose updates came: it needs a quorum of them."""
        plan = view.config.plan
        return retained >= max(1, ceil(plan.participation * plan.quorum * len(view.retained)))

    def recovery_step(self, view: View, step: Step) -> Step:
        before = [t.applied.version_before for t in view.state.tickets.values() if t.recovering and t.applied]
        known = [version for version in before if version is not None]
        if not self.options.project or not known:
            return step
        return replace(step, combine=Combine(rule=CombineRule.LINEAR, others={_BEFORE: min(known)}))

    def factors(self, combine: Combine, updates: Sequence[UpdateBlock], products: Products) -> Mapping[str, float]:
        if _BEFORE in combine.others:
            return away_from(_BEFORE, updates, products)
        return orthogonal(updates, products, self.options.step)


def orthogonal(updates: Sequence[UpdateBlock], products: Products, step: float) -> dict[str, float]:
    """The factors of step * d * |g| / |d|. All are 0 if g lies in the span of the retained updates."""
    n = sum(u.samples for u in updates if u.target)
    share = {vector_of(u): u.samples / n for u in updates if u.target}
    retained = [vector_of(u) for u in updates if not u.target]
    weights = np.array(list(share.values()))
    length = float(weights @ products.matrix(share, tuple(share)) @ weights)
    if not retained:
        return {name: step * p for name, p in share.items()}
    along = products.matrix(retained, tuple(share)) @ weights
    gram = products.matrix(retained, retained)
    c = np.linalg.pinv(gram, rcond=_RANK, hermitian=True) @ along
    left = length - 2 * float(c @ along) + float(c @ gram @ c)
    if left <= 1e-12 * length or length == 0:
        return dict.fromkeys(products.names, 0.0)
    scale = step * sqrt(length / left)
    return {name: scale * p for name, p in share.items()} | {
        name: -scale * float(x) for name, x in zip(retained, c, strict=True)
    }


def away_from(model: str, updates: Sequence[UpdateBlock], products: Products) -> dict[str, float]:
    """The factors of a recovery round: updates without their part along the difference to the model, in full length."""
    n = sum(u.samples for u in updates)
    distance = products.of(model, model)
    found = {model: 0.0}
    for update in updates:
        name, share = vector_of(update), update.samples / n
        length, along = products.of(name, name), products.of(name, model)
        left = length - along * along / distance if distance else length
        if not distance or left <= 1e-12 * length:
            # Without a distance there is no direction to avoid. An update along it has no other part.
            found[name] = share if not distance else 0.0
            continue
        found[name] = share * sqrt(length / left)
        found[model] -= found[name] * along / distance
    return found
