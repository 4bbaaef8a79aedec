"""The verdict on a completed ticket, from what its owner measured."""

from __future__ import annotations

from functools import lru_cache

from puf_common.receipts.evidence import Verdict
from puf_common.receipts.gap import Gap, fraction_left
from puf_common.receipts.verdict import Judgement, judge
from puf_server.core.state.measurements import Measurement
from puf_server.core.state.tickets import Ticket, TicketState


def judgement(ticket: Ticket) -> Judgement | None:
    """Compares the models before and after. None before completion, or if the owner sent no rank comparison."""
    applied, outcome = ticket.applied, ticket.outcome
    if ticket.state is not TicketState.COMPLETED or applied is None or outcome is None:
        return None
    before, after = (
        None if version is None else applied.measurements.get(version)
        for version in (applied.version_before, outcome.version_recovered)
    )
    return None if after is None else _judged(before, after)


def left_of(ticket: Ticket) -> Gap | None:
    """phi: the gap after recovery as a fraction of the gap before; None if the owner did not measure both."""
    applied = ticket.applied
    versions = (applied.version_before, ticket.version_recovered) if applied else ()
    found = [applied.measurements.get(v) for v in versions if applied and v is not None]
    if len(found) < 2:
        return None
    before, after = (m.gap if m else None for m in found)
    return fraction_left(before, after)


def verdict(ticket: Ticket) -> Verdict | None:
    found = judgement(ticket)
    return None if found is None else found.verdict


@lru_cache(maxsize=4096)
def _judged(before: Measurement | None, after: Measurement) -> Judgement | None:
    """Cached, because every scrape of the metrics reads all tickets."""
    return judge(before, after)
