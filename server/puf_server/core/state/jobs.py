"""The unlearning job under way and the recovery after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from puf_server.core.state.measurements import Sums
from puf_server.core.state.tickets import Dose, Mode, UnlearnedSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlearningJob:
    """Tickets that are being applied: an evaluation of the model before, then the steps of the method, one round each.

    The federation's model does not change before the last step commits. Until then the job has its own versions.
    """

    tickets: tuple[str, ...]
    mode: Mode | None
    evaluators: tuple[str, ...]
    before: Mapping[str, Sums] = field(default_factory=dict)
    # Whether the evaluation before is done, or is not possible.
    measured: bool = False
    method: str = "puf"
    # The number of committed steps, and what the method needs to know about them.
    step: int = 0
    method_state: Mapping[str, float | int | str] = field(default_factory=dict)
    # The version that the last step made; None before the first.
    working: int | None = None
    # Auxiliary versions by name.
    aux: Mapping[str, int] = field(default_factory=dict)
    # Adaptive strength: committed doses by ticket, and the model version that was evaluated last for the next dose.
    doses: Mapping[str, tuple[Dose, ...]] = field(default_factory=dict)
    evaluated: int | None = None
    # By ticket: what its target said in its last update of a committed step.
    unlearned: Mapping[str, UnlearnedSamples] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Rounds after unlearning until the stop rule applies, for all applied tickets together.

    A ticket that is applied meanwhile joins: `rounds` counts from 0 again, and the earliest `before` stays.
    """

    evaluators: tuple[str, ...]
    before: Mapping[str, Sums]
    started_at: float
    rounds: int = 0
    # The newest evaluated version and the answers; None before the first evaluation.
    evaluated: int | None = None
    latest: Mapping[str, Sums] = field(default_factory=dict)
    # The model went back to w_0: there is nothing to recover.
    reset: bool = False
    # Bounds on the rounds by the method; None: the federation's policy.
    at_least: int = 0
    at_most: int | None = None
    # Why the model collapsed. Until the operator releases it or rolls back, it is not ready and not exported.
    on_hold: str | None = None
    released: bool = False
    # Scores by client of the evaluated versions, oldest first, for the stop rule.
    course: tuple[Mapping[str, Sums], ...] = ()
    # The clients' learning rate in these rounds; None: that of the round's number.
    lr: float | None = None
    # The method of the last job. It may change the rounds of recovery.
    method: str = ""
