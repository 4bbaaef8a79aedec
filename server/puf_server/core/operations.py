"""Changes that the operator makes to a federation as a whole."""

from __future__ import annotations

from dataclasses import replace

from puf_common.errors import InvalidArgument
from puf_server.core.state.state import State

_MOST_ROUNDS = 1_000_000


def pause(state: State, now: float) -> State:
    """No client is asked to work until the operator resumes."""
    return state if state.paused else replace(state, paused=True).note("federation.paused", now)


def resume(state: State, now: float) -> State:
    """Work continues, also after the federation halted by itself."""
    if not state.paused and not state.halted:
        return state
    return replace(state, paused=False, halted="").note("federation.resumed", now)


def extend(state: State, rounds: int, now: float) -> State:
    """Plans more training rounds."""
    if not 1 <= rounds <= _MOST_ROUNDS:
        raise InvalidArgument(f"the number of rounds to add must lie between 1 and {_MOST_ROUNDS}, not {rounds}")
    planned = max(state.planned, state.trained) + rounds
    return replace(state, planned=planned).note("federation.extended", now, planned=planned)


def stop(state: State, now: float) -> State:
    """Workers get the order to leave. A later start of the server continues."""
    return replace(state, stopping=True).note("federation.stopped", now)
