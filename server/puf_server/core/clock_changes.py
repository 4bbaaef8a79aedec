"""What a change of the federation's clock means for the state."""

from __future__ import annotations

from dataclasses import replace

from puf_server.core.state.state import State


def moved(state: State, seconds: float) -> State:
    """The state after the clock was moved. What waits for a duration still waits for the same time.

    The deadlines of requests are dates and stay. So do the times in histories, receipts and records.
    """

    def later(at: float | None) -> float | None:
        return None if at is None else at + seconds

    current, measuring, recovery = state.round, state.evaluation, state.recovery
    if current is not None:
        opened, declined = current.opened_at + seconds, later(current.declined_at)
        current = replace(current, opened_at=opened, deadline_at=later(current.deadline_at), declined_at=declined)
    if measuring is not None:
        measuring = replace(
            measuring, opened_at=measuring.opened_at + seconds, deadline_at=later(measuring.deadline_at)
        )
    if recovery is not None:
        recovery = replace(recovery, started_at=recovery.started_at + seconds)
    state = replace(state, round=current, evaluation=measuring, recovery=recovery)
    for ticket in state.tickets.values():
        if ticket.not_before is not None and ticket.open:
            state = state.with_ticket(replace(ticket, not_before=later(ticket.not_before)))
        applied = ticket.applied
        if ticket.recovering and applied is not None:
            applied = replace(applied, at_moved=applied.measurable_since + seconds)
            if applied.watch is not None:
                applied = replace(applied, watch=replace(applied.watch, since=applied.watch.since + seconds))
            state = state.with_ticket(replace(state.tickets[ticket.id], applied=applied))
    return state


def deadline_between(state: State, since: float, now: float) -> str:
    """A waiting ticket whose deadline lies between two times; empty if there is none."""
    return next((t.id for t in state.tickets.values() if t.waiting and since < t.deadline_at <= now), "")
