"""Server optimizers of FedOpt (Reddi et al. 2021): ordinary rounds step by moments of the averaged update.

    d = sum (n_i / n) Delta_i
    m <- beta1 * m + (1 - beta1) * d
    v <- beta2 * v + (1 - beta2) * d^2                           adam
    v <- v - (1 - beta2) * d^2 * sign(v - d^2)                   yogi
    w <- w + server_lr * m / (sqrt(v) + tau)

m begins at 0 and v at tau^2, without bias correction, as published.

m and v contain all past updates. Therefore they are deleted when a request is applied: steps by old moments would repeat
updates of the forgotten client. Rounds of a job take the plain step of FedAvg: a negated update in m would enter the model
again in later rounds, and v would change its strength. Recovery begins with new moments.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puf_server.core import step_rounding
from puf_server.core.config import Plan
from puf_server.core.state.rounds import CombineRule, HistoryRecord, Round, RoundKind
from puf_server.core.state.state import State

KIND = "moments"
FIRST, SECOND = "moments/first", "moments/second"


def applies(plan: Plan, current: Round) -> bool:
    """Whether the optimizer computes this round: ordinary ones whose updates are averaged."""
    ordinary = current.kind in (RoundKind.TRAIN, RoundKind.RECOVER)
    return plan.server_optimizer != "sgd" and ordinary and current.step.combine.rule == CombineRule.FOLD


def plain_rate(plan: Plan, current: Round) -> float:
    """The rate of a plain step: the plan's in ordinary rounds of FedAvg, else 1."""
    return plan.server_lr if current.denominator is None and plan.server_optimizer == "sgd" else 1.0


def stepped(
    plan: Plan, d: NDArray[np.float64], m: NDArray[Any] | None, v: NDArray[Any] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The change of the model, and the new m and v. None: the first step."""
    beta1, beta2, tau = plan.server_beta1, plan.server_beta2, plan.server_tau
    old_m = np.zeros(d.size) if m is None else m.astype(np.float64)
    old_v = np.full(d.size, tau * tau) if v is None else v.astype(np.float64)
    square = d * d
    new_m = beta1 * old_m + (1 - beta1) * d
    if plan.server_optimizer == "adam":
        new_v = beta2 * old_v + (1 - beta2) * square
    else:
        new_v = old_v - (1 - beta2) * square * np.sign(old_v - square)
    return plan.server_lr * new_m / (np.sqrt(new_v) + tau), new_m, new_v


def moments(state: State) -> tuple[HistoryRecord, HistoryRecord] | None:
    """The records of m and v; None before the first step and after a request."""
    found = state.history.get(FIRST), state.history.get(SECOND)
    return (found[0], found[1]) if found[0] is not None and found[1] is not None else None


def without_carried(state: State, now: float, why: str) -> State:
    """Deletes what one step hands to the next: the moments, and the rounding error of 8-bit steps."""
    carried = (KIND, step_rounding.KIND)
    gone = [r for r in state.history.values() if r.kind in carried]
    if not gone:
        return state
    left = {key: r for key, r in state.history.items() if r.kind not in carried}
    return replace(state, history=left).note("optimizer.reset", now, why=why, bytes=sum(r.nbytes for r in gone))
