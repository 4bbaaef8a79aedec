"""When recovery is over, judged by the clients' scores.

equal     at least 2 rounds, and the score is not below the score before by more than the standard error of the change;
          or, after any number of rounds, it has reached `recovery_ratio` of the score before
plateau   at least 3 rounds, and the gain over each of the last one, two and three rounds is within its standard error

A share of the score before alone cannot be the rule: with fewer data even a retrained model may miss it. Changes are
compared client by client, because the same hold-outs are measured each time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from puf_server.core.state.jobs import Recovery
from puf_server.core.state.measurements import Sums
from puf_server.core.state.tickets import RecoveryEnd

EQUAL_ROUNDS = 2
PLATEAU_ROUNDS = 3
# With fewer clients their spread says nothing.
_COMPARABLE = 3


@dataclass(frozen=True, slots=True)
class Change:
    """The scores of the same clients at two times, and the standard error of their difference."""

    before: float
    after: float
    error: float

    @property
    def gain(self) -> float:
        return self.after - self.before


def change(before: Mapping[str, Sums], after: Mapping[str, Sums]) -> Change | None:
    """The change over the clients that measured both; None without one."""
    both = sorted(before.keys() & after.keys())
    n = sum(after[name].samples for name in both)
    if not n:
        return None
    shares = [after[name].samples / n for name in both]
    old = math.fsum(s * before[name].score for s, name in zip(shares, both, strict=True))
    new = math.fsum(s * after[name].score for s, name in zip(shares, both, strict=True))
    if len(both) >= _COMPARABLE:
        spread = math.fsum(
            (s * (after[name].score - before[name].score - (new - old))) ** 2
            for s, name in zip(shares, both, strict=True)
        )
        return Change(old, new, math.sqrt(spread * len(both) / (len(both) - 1)))
    mean = min(1.0, max(0.0, (old + new) / 2))
    return Change(old, new, math.sqrt(mean * (1 - mean) / n))


def ended(recovery: Recovery, ratio: float) -> RecoveryEnd | None:
    """EQUAL, PLATEAU or None."""
    all_of_it = change(recovery.before, recovery.latest)
    if all_of_it is None:
        return None
    if all_of_it.after >= ratio * all_of_it.before:
        return RecoveryEnd.EQUAL
    if recovery.rounds >= EQUAL_ROUNDS and all_of_it.gain >= -all_of_it.error:
        return RecoveryEnd.EQUAL
    if recovery.rounds < PLATEAU_ROUNDS or len(recovery.course) < PLATEAU_ROUNDS + 1:
        return None
    steps = [change(earlier, recovery.course[-1]) for earlier in recovery.course[-PLATEAU_ROUNDS - 1 : -1]]
    level = all(step is not None and step.gain <= step.error for step in steps)
    return RecoveryEnd.PLATEAU if level else None


def sentence(end: RecoveryEnd, recovery: Recovery) -> str:
    """How recovery ended, for the ticket's history."""
    said = {
        RecoveryEnd.EQUAL: "recovered: the score is that of before",
        RecoveryEnd.PLATEAU: "recovered as far as the remaining data allow: the score no longer rises",
        RecoveryEnd.LIMIT: "not recovered within the allowed rounds",
        RecoveryEnd.TIME: "not recovered within the allowed days",
        RecoveryEnd.NO_CLIENT: "recovery ended, because no client is left to train",
        RecoveryEnd.NOT_MEASURED: "recovery could not be measured",
        RecoveryEnd.RESET: "the model went back to its initial weights",
    }[end]
    found = change(recovery.before, recovery.latest)
    if found is None or end is RecoveryEnd.RESET:
        return said
    return f"{said} ({found.after:.1%}, before {found.before:.1%}; standard error {100 * found.error:.1f} points)"
