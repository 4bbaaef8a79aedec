"""Keeps the core's state: applies functions to it, persists the difference, folds rounds, tells who waits.

What is to be done next is read off the state (a round in FOLDING wants to be folded, files without a record want to be
deleted), so a restart continues where the last process stopped.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from puf_common.logging import get_logger
from puf_server.aggregation.folder import Folder, FoldResult
from puf_server.core import rounds, scheduler
from puf_server.core.state.presence import Presence, after_restart, settled
from puf_server.core.state.rounds import Round, RoundKind, RoundPhase
from puf_server.core.state.state import AuditNote, State
from puf_server.core.state.tickets import TicketState
from puf_server.failpoints import hit
from puf_server.storage.state_store import Store

__all__ = ["Engine"]

T = TypeVar("T")
log = get_logger(__name__)

_ALARMS = {
    "ticket.failed": "A REQUEST TO BE FORGOTTEN HAS FAILED: nothing was forgotten",
    "ticket.reopened": "a client that was forgotten is known again; its request is open again",
    "federation.halted": "the federation has halted; look into it, then run `puf-server resume`",
}


class Folds(Protocol):
    """Computes the model of a closed round."""

    def fold(self, state: State, current: Round) -> FoldResult: ...


class Engine:
    """One federation in memory and on disk. Safe to use from several threads. `folder` computes the models."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        on_change: Callable[[], None] = lambda: None,
        folder: Folds | None = None,
    ) -> None:
        self.store = store
        self._folder = folder or Folder(store)
        self.config = store.config
        self.manifest = store.manifest
        self.clock = clock
        self.on_change = on_change
        # What is tried again and again without success, for the operator's eyes; empty when all is well.
        self.trouble = ""
        self._purge_due = True
        self.presence = Presence()
        self._advanced: State | None = None
        self._lock = threading.Lock()
        try:
            self._recover()
        except BaseException:
            store.close()
            raise

    def _recover(self) -> None:
        """Believes nothing that it has not looked at: models are there, updates are whole, anything else is deleted."""
        self.state = self.store.load()
        self.store.require_models(self.state)
        self.verify_spool()
        self.call(
            lambda state, now: (scheduler.restarted(state, self.config, now), None),
            lambda _, now: after_restart(self.state, now),
        )
        self.store.delete_orphans(self.state, everything=True)
        self._purge()

    def call(
        self,
        change: Callable[[State, float], tuple[State, T]],
        attend: Callable[[Presence, float], Presence] = lambda presence, _: presence,
    ) -> T:
        """Applies a change, lets the federation advance, and keeps the result before anybody sees it.

        `attend` changes the presence, after `change` has looked at the old one.
        """
        with self._lock:
            before, now = self.state, self.clock()
            after, result = change(before, now)
            presence = settled(attend(self.presence, now), before, after)
            after = scheduler.advance(after, presence, self.config, now, since=self._advanced)
            completed = after.tickets is not before.tickets and _completed(after) > _completed(before)
            if completed:
                hit("completion.before")
            self.store.save(before, after)
            self.state = self._advanced = replace(after, notes=()) if after.notes else after
            self.presence = settled(presence, before, after)
            for note in after.notes:
                # What the audit log says, for whoever reads logs: round, client and ticket are among the facts.
                log.info(note.event, **{"round": after.number, **note.facts})
            if after is not before:
                self.on_change()
            _tell(after.notes)
            if completed:
                hit("completion.after")
                self._purge_due = True
            if after.round is not before.round and self.round_to_fold() is not None:
                hit("round.closed")
            if (
                after.models is not before.models
                or after.history is not before.history
                or not _only_more_arrived(before.round, after.round)
            ):
                self._delete_orphans()
            self._purge()
        return result

    def read(self, look: Callable[[State], T]) -> T:
        """The result of `look`, which runs while no change is under way. For reads that also need the database."""
        with self._lock:
            return look(self.state)

    def tick(self) -> None:
        self.call(lambda state, now: (state, None))

    def delete_orphans(self) -> None:
        """Deletes files that no record names, while no booking is under way."""
        with self._lock:
            self._delete_orphans()

    def _delete_orphans(self) -> None:
        try:
            hit("sweep.before")
            self.store.delete_orphans(self.state)
            hit("sweep.after")
        except OSError as error:
            # The change that made them superfluous stands; the next sweep takes them.
            log.error("files not deleted yet", error=str(error))

    def _purge(self) -> None:
        """After a completed request: older versions of its client's records must not outlive it in the database's log."""
        if self._purge_due:
            try:
                self._purge_due = not self.store.purge_free_pages()
            except sqlite3.Error as error:
                # A full disk, mostly; the next change tries again.
                log.error("old records not wiped yet", error=str(error))

    def verify_spool(self) -> None:
        """Asks again for updates that are booked and not on disk as they were sent."""
        with self._lock:
            after, now = self.state, self.clock()
            for key, why in self.store.damaged(after.round).items():
                log.error("an update is lost; its client is asked again", key=key, why=why)
                after = rounds.lose(after, key, now, why)
            self.store.save(self.state, after)
            self.state = replace(after, notes=())
        self.on_change()

    def round_to_fold(self) -> Round | None:
        current = self.state.round
        return current if current is not None and current.phase is RoundPhase.FOLDING else None

    def fold(self, current: Round) -> FoldResult:
        """Computes and writes the model of a closed round. Slow; needs no lock."""
        return self._folder.fold(self.state, current)

    def commit(self, result: FoldResult) -> None:
        """Commits a fold, unless the round has changed since (somebody's assignment was taken out)."""

        def change(state: State, now: float) -> tuple[State, None]:
            current = state.round
            if current is None or (current.number, current.attempt, current.revision, current.phase) != (
                result.round.number,
                result.round.attempt,
                result.round.revision,
                RoundPhase.FOLDING,
            ):
                return state, None
            if result.culprit:
                return scheduler.unfit(state, self.config, result.culprit, result.failure, now), None
            if result.failure:
                return scheduler.fold_failed(state, result.failure, now), None
            after = scheduler.committed(
                state,
                self.config,
                digest=result.digest,
                blake3=result.blake3,
                nbytes=result.nbytes,
                nbytes_down=self.presence.nbytes_down,
                now=now,
                remembered=result.remembered,
            )
            return after, None

        kind = RoundKind.UNLEARN if result.round.kind in (RoundKind.RESET, RoundKind.ROLLBACK) else result.round.kind
        point = f"commit.{kind}"
        hit(f"{point}.before")
        self.call(change)
        hit(f"{point}.after")

    def fold_ready(self) -> None:
        """Folds whatever is ready, here and now. For callers without an event loop."""
        while (current := self.round_to_fold()) is not None:
            self.commit(self.fold(current))

    def close(self) -> None:
        self.store.close()


def _only_more_arrived(before: Round | None, after: Round | None) -> bool:
    """Whether no file has become superfluous: an update that arrives, and most changes are that, adds one."""
    if before is after:
        return True
    if before is None or after is None:
        return False
    return before.received.items() <= after.received.items() and replace(
        before, received={}, phase=after.phase
    ) == replace(after, received={})


def _tell(notes: tuple[AuditNote, ...]) -> None:
    """What somebody has to look into, loudly: a duty was not fulfilled, or might not be."""
    for note in notes:
        if note.event in _ALARMS:
            log.error(_ALARMS[note.event], **note.facts)


def _completed(state: State) -> set[str]:
    return {t.id for t in state.tickets.values() if t.state is TicketState.COMPLETED}
