"""What a change of the state means for the engine's work."""

from __future__ import annotations

from dataclasses import dataclass, replace

from puf_server.core.state.rounds import Round, RoundPhase
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState


def closed(state: State) -> Round | None:
    """The closed round whose model is not computed yet, if there is one."""
    current = state.round
    return current if current is not None and current.phase is RoundPhase.FOLDING else None


def same_fold(current: Round | None, folded: Round) -> bool:
    """Whether the open round is still the closed round that is or was folded."""
    return (
        current is not None
        and current.phase is RoundPhase.FOLDING
        and (current.number, current.attempt, current.revision) == (folded.number, folded.attempt, folded.revision)
    )


def frees_files(before: State, after: State) -> bool:
    """Whether the change may have made a file superfluous."""
    changed = after.models is not before.models or after.history is not before.history
    return changed or not only_more_arrived(before.round, after.round)


def only_more_arrived(before: Round | None, after: Round | None) -> bool:
    """Whether the change made no file superfluous. An update that arrives only adds one, and most changes are that."""
    if before is after:
        return True
    if before is None or after is None:
        return False
    return before.received.items() <= after.received.items() and replace(
        before, received={}, phase=after.phase, closed_at=after.closed_at
    ) == replace(after, received={})


def completes(before: State, after: State) -> bool:
    """Whether the change completes a request."""
    return after.tickets is not before.tickets and _completed(after) > _completed(before)


def _completed(state: State) -> set[str]:
    return {t.id for t in state.tickets.values() if t.state is TicketState.COMPLETED}


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What changes leave to do without the engine's lock."""

    # Files that no record names may be there.
    freed: bool = False
    # A request was completed: its records must leave the database's log.
    completed: bool = False

    def with_change(self, before: State, after: State) -> Cleaning:
        """The same, and what this change leaves."""
        return Cleaning(self.freed or frees_files(before, after), self.completed or completes(before, after))


NOTHING = Cleaning()
