"""The unlearning job under way and the recovery after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from puf_server.core.state.measurements import Sums
from puf_server.core.state.tickets import Mode

__all__ = ["Recovery", "UnlearningJob"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlearningJob:
    """Tickets on their way to being applied: first the measurement before, then the method's steps, one round each.

    The federation's model stays what it is until the last step commits; on the way the job has a model of its own.
    """

    tickets: tuple[str, ...]
    mode: Mode | None
    evaluators: tuple[str, ...]
    before: Mapping[str, Sums] = field(default_factory=dict)
    # Whether the measurement before is done, or cannot be.
    measured: bool = False
    method: str = "puf"
    # Steps committed, and what the method wants to know about them.
    step: int = 0
    method_state: Mapping[str, float | int | str] = field(default_factory=dict)
    # The version that the last step made; None before the first.
    working: int | None = None
    # Auxiliary versions by name.
    aux: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Ordinary rounds after unlearning, until the stop rule holds; serves every applied ticket together.

    A ticket applied meanwhile joins with `rounds` counted anew and the earliest `before` kept.
    """

    evaluators: tuple[str, ...]
    before: Mapping[str, Sums]
    started_at: float
    rounds: int = 0
    # The newest version that was measured, and the answers; None before the first measurement.
    evaluated: int | None = None
    latest: Mapping[str, Sums] = field(default_factory=dict)
    # The model went back to w_0: there is nothing to recover.
    reset: bool = False
    # The method's own bounds on the rounds; None: the federation's.
    at_least: int = 0
    at_most: int | None = None
    # The model collapsed: why it is neither ready nor exported until the operator releases it or rolls back.
    on_hold: str | None = None
    released: bool = False
