"""Spans of the calls that move tensors or concern a ticket. They do nothing while tracing is off."""

from __future__ import annotations

from contextlib import AbstractContextManager

from puf_common.tracing.places import TRACEPARENT, Place, place_of_round, place_of_ticket, read_place
from puf_common.tracing.process import Note, active, span
from puf_server.engine.engine import Engine
from puf_server.rpc.calls import Context


class CallSpans:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def transfer(self, name: str, client: str, context: Context) -> AbstractContextManager[Note]:
        """The span of a transfer, in the trace of the round."""
        if active() is None:
            return span(name, None)
        state = self._engine.state
        number = state.round.number if state.round is not None else state.number
        place = place_of_round(self._engine.config.id, number)
        return span(name, _parent(place, context), round=number, client=client)

    def ticket(self, name: str, ticket: str, client: str, context: Context) -> AbstractContextManager[Note]:
        """The span of a call about a ticket, in the trace of that ticket. A ticket that does not exist has none."""
        if active() is None or ticket not in self._engine.state.tickets:
            return span(name, None)
        place = place_of_ticket(self._engine.config.id, ticket)
        return span(name, _parent(place, context), ticket=ticket, client=client)


def _parent(own: Place, context: Context) -> Place:
    """The caller's span, if it is in the same trace. A caller cannot put spans of the server into another trace."""
    for key, value in context.invocation_metadata() or ():
        if key == TRACEPARENT and isinstance(value, str):
            stated = read_place(value)
            if stated is not None and stated.trace == own.trace:
                return stated
    return own
