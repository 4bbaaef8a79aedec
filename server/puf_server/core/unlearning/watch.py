"""Targets that watch recovery: each measures the gap of every model of recovery on its own data.

Adaptive strength makes the model forget a little too much. In recovery the gap comes back from below, and it stops where a
model without the data has it. So recovery ends only when the gap has risen by less than FLAT in two rounds. No absolute
gap is tested: how hard the samples are moves it, for a retrained model as well.

A target that does not measure is not waited for again.
"""

from __future__ import annotations

from dataclasses import replace
from math import fsum

from puf_common.receipts.gap import Gap
from puf_server.core.config import FederationConfig
from puf_server.core.state.jobs import Recovery
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Applied, Ticket, Watch

FLAT = 0.012
# The gap is compared over two rounds, from the third on.
LEAST_ROUNDS = 3
MOST_ROUNDS = 12


def watched(state: State, config: FederationConfig) -> list[Ticket]:
    """Tickets whose owners measure each model: under adaptive strength, and where another method may follow."""
    return [t for t in state.tickets.values() if t.recovering and (t.adaptive or config.forgetting.escalate)]


def offered(state: State, config: FederationConfig, now: float) -> State:
    """Names the newest model on the tickets, so that their owners measure it."""
    for ticket in watched(state, config):
        applied = ticket.applied
        if applied is not None and (applied.watch is None or applied.watch.version != state.version):
            state = state.with_ticket(replace(ticket, applied=_next(applied, state.version, now)))
    return state


def answered(state: State, config: FederationConfig, now: float) -> bool:
    """Whether every owner has measured the newest model, is not there, or has had the time."""
    seconds = config.forgetting.measure_seconds
    for ticket in watched(state, config):
        applied = ticket.applied
        if applied is None or applied.watch is None or applied.watch.version in applied.measurements:
            continue
        begun = applied.watch.since if applied.measurements else applied.measurable_since
        gone = bool(applied.watch.gaps) and applied.watch.gaps[-1] is None
        if not gone and now < begun + seconds:
            return False
    return True


def level(state: State, config: FederationConfig, recovery: Recovery) -> bool:
    """Whether the gap has stopped rising, or cannot be watched."""
    courses = [_course(t) for t in watched(state, config) if t.adaptive]
    present = [course for course in courses if course and course[-1] is not None]
    if not present or recovery.rounds >= MOST_ROUNDS:
        return True
    if recovery.rounds < LEAST_ROUNDS:
        return False
    ends = [(course[-LEAST_ROUNDS], course[-1]) for course in present if len(course) >= LEAST_ROUNDS]
    rises = [now.value - then.value for then, now in ends if then is not None and now is not None]
    return not rises or fsum(rises) / len(rises) < FLAT


def _course(ticket: Ticket) -> tuple[Gap | None, ...]:
    """The gaps of the models of recovery, oldest first."""
    applied = ticket.applied
    return (*applied.watch.gaps, _gap(applied)) if applied and applied.watch else ()


def _gap(applied: Applied) -> Gap | None:
    found = applied.measurements.get(applied.watch.version) if applied.watch else None
    return found.gap if found else None


def _next(applied: Applied, version: int, now: float) -> Applied:
    """Of the model watched before, only the gap stays."""
    if applied.watch is None:
        return replace(applied, watch=Watch(version=version, since=now))
    kept = (applied.version_before, applied.version_unlearned)
    measurements = {v: m for v, m in applied.measurements.items() if v != applied.watch.version or v in kept}
    watch = Watch(version=version, since=now, gaps=(*applied.watch.gaps, _gap(applied)))
    return replace(applied, watch=watch, measurements=measurements)
