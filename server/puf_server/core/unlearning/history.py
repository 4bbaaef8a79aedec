"""Stored history of updates: only what a method of the federation needs, only of ordinary rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from puf_server.core import methods
from puf_server.core.config import FederationConfig, Forgetting
from puf_server.core.state.rounds import HistoryRecord, Round, RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket


def words(policy: Forgetting) -> tuple[str, ...]:
    """Everything that is stored, as clients learn it when they join."""
    return tuple(dict.fromkeys(word for memory in methods.stored_history(policy) for word in memory.words))


def kinds(policy: Forgetting) -> frozenset[str]:
    """The kinds of history that are made from updates."""
    return frozenset(words(policy)) & {"norms", "first-updates", "sums", "spreads"}


def wanted(state: State, config: FederationConfig, current: Round) -> frozenset[str]:
    """The kinds of history to store of this round. Rounds of a job leave none: they are made from history."""
    if current.kind not in (RoundKind.TRAIN, RoundKind.RECOVER):
        return frozenset()
    found = kinds(config.forgetting)
    if any(r.kind in (RoundKind.TRAIN, RoundKind.RECOVER) for r in state.records.values()):
        found -= {"first-updates"}
    return found


def keep(state: State, records: Sequence[HistoryRecord]) -> State:
    if not records:
        return state
    return replace(state, history={**state.history, **{r.key: r for r in records}})


def forget(state: State, ticket: Ticket, now: float) -> State:
    """Deletes the history of a forgotten client, and records on its ticket how much that was."""
    gone = {k: r for k, r in state.history.items() if (r.client, r.membership) == (ticket.client, ticket.membership)}
    if not ticket.whole_client or not gone or ticket.applied is None:
        return state
    nbytes = sum(r.nbytes for r in gone.values())
    ticket = replace(ticket, applied=replace(ticket.applied, deleted_records=len(gone), deleted_bytes=nbytes))
    state = replace(state, history={k: r for k, r in state.history.items() if k not in gone}).with_ticket(ticket)
    return state.note("history.deleted", now, ticket=ticket.id, client=ticket.client, records=len(gone), bytes=nbytes)


def rewritten(state: State, config: FederationConfig, now: float, *, since: int = 0) -> State:
    """Deletes history that is not valid for a model that was rebuilt from that of round `since`.

    Later updates are not in it: they would be subtracted from a model that lacks them.
    """
    stays = {word for m in methods.stored_history(config.forgetting) if m.survives_rewrite for word in m.words}
    left = {k: r for k, r in state.history.items() if r.kind in stays or r.round <= since}
    if len(left) == len(state.history):
        return state
    gone = len(state.history) - len(left)
    return replace(state, history=left).note("history.outdated", now, records=gone)
