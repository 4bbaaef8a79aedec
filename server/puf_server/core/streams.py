"""Random streams of a federation. Before the first request they follow from the round's number alone.

A method has streams of its own, in its steps and in the rounds after them. Two methods that continue the same federation
then differ in all random choices, and none of them shares those of a model that is trained again without the target.
"""

from __future__ import annotations

from puf_common.seeds import derive
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.state import State


def name_of(state: State, kind: RoundKind, method: str | None) -> str:
    """The name of the streams of a round: that of its method with the mode, or of the last method before it."""
    if kind is not RoundKind.UNLEARN or method is None:
        return state.streams
    mode = state.job.mode if state.job is not None else None
    return method if mode is None else f"{method}-{mode}"


def number_of(name: str, number: int) -> int | None:
    """The number from which the clients derive the streams of a round. None stands for the round's own number."""
    return derive(number, "streams", name) if name else None
