"""Spans of rounds and tickets, from the state. They are made after a commit or a change of a ticket."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from puf_common.tracing.places import Place, place_of_round, place_of_ticket
from puf_common.tracing.process import active, prefixed
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket, TicketEvent, TicketState
from puf_server.runtime.fold_loop import RoundTimes

Attributes = dict[str, str | int | tuple[str, ...]]


@dataclass(frozen=True)
class PastSpan:
    """A span that has ended. `at` is the place of a round or a ticket; the other spans are below one."""

    name: str
    begun: float
    ended: float
    attributes: Attributes
    parent: Place | None = None
    at: Place | None = None
    links: tuple[Place, ...] = ()


class StateTraces:
    """Exports spans of one federation's rounds and tickets. Does nothing while tracing is off."""

    def __init__(self, federation: str, clock: Callable[[], float] = time.time) -> None:
        self._federation, self._clock = federation, clock

    def round_took(self, state: State, times: RoundTimes) -> None:
        if active() is not None:
            _export(round_spans(self._federation, state, times, self._clock()))

    def changed(self, before: State, after: State) -> None:
        if active() is not None and before.tickets is not after.tickets:
            for ticket in after.tickets.values():
                _export(ticket_spans(self._federation, after, before.tickets.get(ticket.id), ticket))


def round_spans(federation: str, state: State, times: RoundTimes, now: float) -> Iterator[PastSpan]:
    """The span of a committed round, and below it those of its phases: updates, fold and commit."""
    current = times.round
    record = state.records.get(current.number)
    if record is None or record.attempt != current.attempt:
        # Not committed: its updates could not be summed.
        return
    place = place_of_round(federation, current.number)
    attributes: Attributes = {
        "round": current.number,
        "attempt": current.attempt,
        "kind": current.kind.value,
        "contributions": record.contributions,
    }
    if record.tickets:
        attributes["tickets"] = record.tickets
    if record.version in state.models:
        attributes["model.digest"] = state.models[record.version].digest
    folded = now - times.committing
    closed = folded - times.folding
    opened = closed - times.collecting
    links = tuple(place_of_ticket(federation, ticket) for ticket in record.tickets)
    yield PastSpan("round", opened, now, attributes, at=place, links=links)
    common: Attributes = {"round": current.number}
    yield PastSpan("round.updates", opened, closed, common, place)
    yield PastSpan("round.fold", closed, folded, common, place)
    yield PastSpan("round.commit", folded, now, common, place)


def ticket_spans(federation: str, state: State, before: Ticket | None, ticket: Ticket) -> Iterator[PastSpan]:
    """The spans of the states that a ticket has left since `before`; after its end also the span of the ticket."""
    if before is ticket or not ticket.history:
        return
    place = place_of_ticket(federation, ticket.id)
    known = len(_stays(before.history)) if before is not None else 0
    for state_left, begun, ended in _stays(ticket.history)[known:]:
        yield PastSpan(f"ticket.{state_left}", begun, ended, {"ticket": ticket.id}, place)
    if not ticket.open and (before is None or before.open):
        attributes: Attributes = {"ticket": ticket.id, "state": ticket.state.value}
        if ticket.applied is not None:
            attributes |= {"round": ticket.applied.round, "method": ticket.applied.method}
        version = ticket.version_recovered
        if version is not None and version in state.models:
            attributes["model.digest"] = state.models[version].digest
        yield PastSpan("ticket", ticket.history[0].at, ticket.history[-1].at, attributes, at=place)


def _stays(history: tuple[TicketEvent, ...]) -> list[tuple[TicketState, float, float]]:
    """The states that a ticket was in and has left, each with its begin and end."""
    entered = [next(events) for _, events in itertools.groupby(history, key=lambda event: event.state)]
    return [(left.state, left.at, next_one.at) for left, next_one in itertools.pairwise(entered)]


def _export(spans: Iterator[PastSpan]) -> None:
    tracer = active()
    if tracer is not None:
        for span in spans:
            tracer.record(
                span.name,
                span.begun,
                prefixed(dict(span.attributes)),
                parent=span.parent,
                at=span.at,
                ended=span.ended,
                links=span.links,
            )
