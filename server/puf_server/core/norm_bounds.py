"""How large an update may be, compared with updates of recent rounds.

An update enters as u = scale * Delta. A target's scale may be large, so the norm of u / scale is measured. Each committed
round records the median norm of its ordinary updates. An update may have `norm_factor` times the largest of the recent
medians. The largest, not the mean: recovery after unlearning takes steps as large as early training does. Before the first
commit only the absolute limit applies. Buffers travel as values, not as differences; the same rule applies to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from puf_server.core.config import FederationConfig
from puf_server.core.state.rounds import Assignment, Round, RoundRecord
from puf_server.core.state.state import State

# The limit for buffers before the first commit: a model may store counts or sums there.
_LARGEST_BUFFER = 1e12


@dataclass(frozen=True, slots=True)
class Norms:
    """Euclidean norms of an update's parameters, before scaling, and of its floating buffers."""

    parameters: float
    buffers: float


def allowed(state: State, config: FederationConfig, assignment: Assignment) -> Norms:
    """The largest norms that an update for this assignment may have."""
    limits = config.limits
    if assignment.routine not in ("train", "dose"):
        # Updates of a method's own routine (ascent, distillation, heads) are not comparable with training.
        return Norms(limits.max_norm, _LARGEST_BUFFER)
    # Committed rounds are numbered without gaps: this looks at the recent ones only, however many there are.
    numbers = range(state.number, max(0, state.number - limits.norm_rounds), -1)
    recent = [state.records[number] for number in numbers if number in state.records]
    # More local epochs make larger updates.
    longer = max(1.0, assignment.epochs / config.recipe.epochs)
    return Norms(
        min(limits.max_norm, _largest(recent, "norm", limits.norm_factor) * longer),
        min(_LARGEST_BUFFER, _largest(recent, "buffer_norm", limits.norm_factor)),
    )


def of_round(current: Round) -> Norms | None:
    """The median norms of a round's ordinary updates; None if it had none."""
    updates = [current.received[s.key] for s in _plain(current) if s.key in current.received]
    if not updates:
        return None
    return Norms(median(u.norm for u in updates), median(u.buffer_norm for u in updates))


def _plain(current: Round) -> list[Assignment]:
    return [s for s in current.assignments if not s.negated and s.routine == "train"]


def _largest(recent: list[RoundRecord], which: str, factor: float) -> float:
    known = [norm for record in recent if (norm := getattr(record, which))]
    return factor * max(known) if known and factor else float("inf")
