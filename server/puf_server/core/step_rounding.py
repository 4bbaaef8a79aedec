"""Ordinary rounds that step in 8-bit numbers: what rounding changes in one step, the next step adds (error feedback).

    s  = server_lr * sum (n_i / n) Delta_i + e
    q  = s rounded to the nearest 8-bit number of its block
    w' = w + q                       product of number and scale, and sum, in float32: clients compute the same bits
    e' = w + s - w'

e contains parts of all past updates. Therefore it is deleted when a request is applied, as the moments of a server
optimizer are. Rounds of a job are not rounded: a request's effect does not depend on the encoding.
"""

from __future__ import annotations

from puf_server.core.config import Plan
from puf_server.core.state.rounds import CombineRule, HistoryRecord, Round, RoundKind
from puf_server.core.state.state import State

KIND = "rounding"
KEY = "rounding/step"


def applies(plan: Plan, current: Round) -> bool:
    """Whether this round's step is rounded: ordinary ones whose updates are averaged."""
    ordinary = current.kind in (RoundKind.TRAIN, RoundKind.RECOVER) and current.denominator is None
    return plan.step_encoding == "i8" and ordinary and current.step.combine.rule == CombineRule.FOLD


def error(state: State, base: int) -> HistoryRecord | None:
    """The record of e that the step to this model left; None if the model was made in another way, or after a request."""
    found = state.history.get(KEY)
    return found if found is not None and found.round == state.models[base].round else None
