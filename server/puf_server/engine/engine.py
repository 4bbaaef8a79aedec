"""The state of one federation: applies changes, persists them, notifies listeners.

The state itself says what is to be done next: a round in FOLDING is to be folded, a file without a record is to be
deleted. So a restart continues where the last process stopped. Where several processes serve the federation, each has a
copy of the state, and the database orders their changes: a change that was applied to an older state is applied again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from puf_common.errors import PufError, StorageCorrupted, Unavailable
from puf_common.logging import get_logger
from puf_server.aggregation.folder import Folder, FoldResult
from puf_server.aggregation.verified import DamagedFile
from puf_server.core import scheduler
from puf_server.core.commits import ModelFile
from puf_server.core.state.presence import Presence, after_restart, joined_elsewhere, settled
from puf_server.core.state.rounds import Round, RoundKind, RoundPhase
from puf_server.core.state.state import State
from puf_server.engine import audit_log, comparisons
from puf_server.engine.comparisons import NOTHING, Cleaning
from puf_server.engine.deletion import Deletion
from puf_server.engine.log_purge import LogPurge
from puf_server.engine.sharing import Sharing
from puf_server.engine.spool_checks import lose, may_miss_updates, verify_spool
from puf_server.engine.timekeeping import Timekeeping
from puf_server.engine.troubles import Trouble, Troubles
from puf_server.failpoints import hit
from puf_server.storage.state_database import DatabaseBusy, StateMoved
from puf_server.storage.state_store import Store

T = TypeVar("T")
Listener = Callable[[State, State], None]
log = get_logger(__name__)

# Seconds that a call waits while another process writes to the database, and between two attempts.
_BUSY_SECONDS = 5.0
_BUSY_PAUSE = 0.02


class Folds(Protocol):
    """Computes the model of a closed round."""

    def fold(self, state: State, current: Round) -> FoldResult: ...


class Engine:
    """One federation in memory and on disk. Safe to use from any thread.

    One lock orders all changes. `state` is immutable and may be read without the lock. `folder` computes the models.
    """

    def __init__(self, store: Store, clock: Callable[[], float], folder: Folds | None = None) -> None:
        self.store = store
        # Several processes may serve the federation.
        self.shared = bool(store.database.owner)
        self.config = store.config
        self.manifest = store.manifest
        self.clock = clock
        self.troubles = Troubles()
        self._folder = folder or Folder(store)
        self.presence = Presence()
        self._listeners: list[Listener] = []
        self._advanced: State | None = None
        self._left_by_others = NOTHING
        self._lock = threading.Lock()
        self._deletion = Deletion(store, self.troubles, self._newest)
        self._purge = LogPurge(store, self.troubles)
        self._time = Timekeeping(self)
        try:
            self._recover()
        except BaseException:
            store.close()
            raise

    def _recover(self) -> None:
        """Verifies files before the state relies on them: models exist, updates are whole, all other files go.

        A process that joins others does not: the files change meanwhile.
        """
        self.state = self.store.load()
        self._time.start()
        if self.store.joined:
            self.presence = after_restart(self.state, self.clock())
        else:
            self.store.require_files(self.state)
            audit_log.report_damage(self.store, self.troubles)
            verify_spool(self)
            self.call(
                lambda state, now: (scheduler.restarted(state, self.config, now), None),
                lambda _, now: after_restart(self.state, now),
            )
            self.store.delete_orphans(lambda: self.state, everything=True)
        self._purge.run()
        self.store.never_wait()
        self.store.database.watch(Sharing(self))

    def subscribe(self, listener: Listener) -> None:
        """Calls `listener` with the state before and after each change, in order and under the lock: it must be quick."""
        self._listeners.append(listener)

    def call(
        self,
        change: Callable[[State, float], tuple[State, T]],
        attend: Callable[[Presence, float], Presence] = lambda presence, _: presence,
        fold: int | None = None,
    ) -> T:
        """Applies a change, lets the federation advance, and persists the new state before any caller sees it.

        `attend` changes the presence, after `change` has read the old one. Where another process writes to the database,
        both are called again, at most for some seconds; no other call waits for that. So they are where `change` raises
        and the state was not the newest one. `fold` is the right to fold that the change needs.
        """
        return self._without_waiting(lambda: self._call(change, attend, fold))

    def change(
        self,
        change: Callable[[State, float], State],
        attend: Callable[[Presence, float], Presence] = lambda presence, _: presence,
        now: float | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Applies a change that lets nothing advance. `now` is recorded as the time with it; `then` follows in the lock."""

        def apply() -> None:
            with self._lock:
                before, at = self.state, self.clock()
                self._replace(before, change(before, at), attend(self.presence, at), now)
                then()

        self._without_waiting(apply)

    def write(self, write: Callable[[], bool]) -> None:
        """Writes to the database beside the state. `write` returns whether it wrote."""

        def apply() -> None:
            with self._lock:
                self._reported(write)

        self._without_waiting(apply)

    def attend(self, change: Callable[[Presence, float], Presence]) -> None:
        """Changes the presence in a way that lets nothing advance and needs no record."""
        with self._lock:
            self.presence = change(self.presence, self.clock())

    def _without_waiting(self, work: Callable[[], T]) -> T:
        """Repeats `work`, which takes the lock, while another process writes to the database. Waits without the lock."""
        give_up, moved, refused = time.monotonic() + _BUSY_SECONDS, False, False
        while True:
            before = self.state
            try:
                if moved:
                    self.catch_up()
                    moved = False
                return work()
            except DatabaseBusy as error:
                moved = moved or isinstance(error, StateMoved)
                if time.monotonic() > give_up:
                    self.troubles.report(Trouble.STATE, error.message)
                    raise
            except PufError:
                self.catch_up()
                if refused or self.state is before:
                    raise
                refused = True
            time.sleep(0.0 if moved else _BUSY_PAUSE)

    def catch_up(self) -> bool:
        """Adopts the newest state where another process has changed it. Returns whether one has."""
        with self._lock:
            before = self.state
            newest = self.store.newer(before)
            if newest is None:
                return False
            self.state = newest
            presence = joined_elsewhere(self.presence, before, newest, self.clock())
            self.presence = settled(presence, before, newest)
            # The other process may have died before it cleaned up.
            self._left_by_others = self._left_by_others.with_change(before, newest)
            for listener in self._listeners:
                listener(before, newest)
            return True

    def refresh(self) -> None:
        """Adopts the newest state if the database answers."""
        with suppress(DatabaseBusy):
            self.catch_up()

    def newest(self, read: Callable[[], T]) -> T:
        """The result of `read`, called again where it refuses because of an older state. Raises if no newer one can be read."""
        before = self.state
        try:
            return read()
        except PufError:
            self.catch_up()
            if self.state is before:
                raise
        return read()

    def _call(
        self,
        change: Callable[[State, float], tuple[State, T]],
        attend: Callable[[Presence, float], Presence],
        fold: int | None,
    ) -> T:
        with self._lock:
            before, now = self.state, self.clock()
            after, result = change(before, now)
            presence = settled(attend(self._with_disk(self.presence, before), now), before, after)
            after = scheduler.advance(after, presence, self.config, now, since=self._advanced)
            cleaning = NOTHING.with_change(before, after)
            if cleaning.completed:
                hit("completion.before")
            self._replace(before, after, settled(presence, before, after), fold=fold)
            self._advanced = self.state
            if cleaning.completed:
                hit("completion.after")
            if after.round is not before.round and self.round_to_fold() is not None:
                hit("round.closed")
        self._clean(cleaning)
        return result

    def _clean(self, cleaning: Cleaning) -> None:
        if cleaning.completed:
            self._purge.want()
        if cleaning.freed:
            self.delete_orphans()
        if cleaning.completed:
            try:
                self.store.mark_completed()
            except (PufError, OSError) as error:
                # The request is completed. The next one writes the mark.
                log.error("a completed request is not marked beside the database", error=str(error))
            self._purge.run()

    def _replace(
        self, before: State, after: State, presence: Presence, now: float | None = None, fold: int | None = None
    ) -> None:
        """Persists and publishes a new state, and records the time if it is given. The caller holds the lock."""
        self._reported(lambda: self.store.save(before, after, now, fold))
        self.state = replace(after, notes=()) if after.notes else after
        self.presence = presence
        for note in after.notes:
            audit_log.log_note(note, after.number)
        if after is not before:
            for listener in self._listeners:
                listener(before, self.state)

    def _reported(self, write: Callable[[], bool]) -> None:
        """Writes to the database; shows why that fails until a later write succeeds. The caller holds the lock."""
        try:
            written = write()
        except DatabaseBusy:
            raise
        except (Unavailable, StorageCorrupted) as error:
            self.troubles.report(Trouble.STATE, error.message)
            raise
        if written:
            self.troubles.clear(Trouble.STATE)

    def tick(self) -> None:
        """Lets time pass: deadlines, absences, and work that is retried."""
        # The message that another process has changed the state may be lost.
        self.refresh()
        with self._lock:
            cleaning, self._left_by_others = self._left_by_others, NOTHING
        self._clean(cleaning)
        self._time.check()
        self.call(lambda state, now: (state, None))
        self._report_space()
        self._purge.run()
        self._time.record()

    def _with_disk(self, presence: Presence, state: State) -> Presence:
        """The presence with the disk's space, where the next step may open a round."""
        may_open = state.round is None or state.round.phase is RoundPhase.FOLDING
        return replace(presence, disk=self.store.disk_space()) if may_open else presence

    def _report_space(self) -> None:
        lacking = scheduler.lacks_space(self.state, self.presence, self.config, self.clock())
        if not lacking:
            self.troubles.clear(Trouble.DISK)
        elif self.troubles.report(Trouble.DISK, lacking):
            log.error("the disk has no space for the next round", why=lacking)

    def accept_clock(self) -> None:
        """The operator says that the system's clock is right. Has no effect where it did not jump."""
        self._time.accept()

    def read_time(self) -> float | None:
        """The time that a process recorded last."""
        with self._lock:
            return self.store.last_time()

    def delete_orphans(self) -> None:
        """Deletes files that no record names. Runs outside the engine's lock."""
        self._deletion.run()

    def _newest(self) -> State:
        """The newest state, also where another process has changed it."""
        self.catch_up()
        return self.state

    def round_to_fold(self) -> Round | None:
        """The closed round whose model is not computed yet, if there is one."""
        return comparisons.closed(self.state)

    def begin_fold(self) -> int | None:
        """The right to fold the round of the newest state, for `commit`; None: another process has it."""

        def begin() -> int | None:
            with self._lock:
                return self.store.database.begin_fold()

        right = self._without_waiting(begin)
        self.refresh()
        return right

    def end_fold(self) -> None:
        with self._lock, suppress(DatabaseBusy):
            self.store.database.end_fold()

    def fold(self, current: Round) -> FoldResult:
        """Computes and writes the model of a closed round. Slow; needs no lock.

        The round may change meanwhile, and with it the files: the result then says so, and `commit` ignores it.
        """
        state = self.state
        try:
            if not comparisons.same_fold(state.round, current):
                return FoldResult(current, failure="the round has changed")
            return self._folder.fold(state, current)
        except DamagedFile as error:
            if not error.key:
                raise
            # The name of the file contains a digest. It stays out of the audit log, which outlives the client.
            log.error("a damaged file", why=error.message)
            lose(self, current, {error.key: "it does not match its digest"})
            return FoldResult(current, failure=error.message)
        except (OSError, StorageCorrupted) as error:
            self.refresh()
            if may_miss_updates(error):
                # A damaged update is deleted before its loss is recorded. The record may have failed.
                verify_spool(self)
            if comparisons.same_fold(self.state.round, current):
                raise
            return FoldResult(current, failure="the round changed while its updates were read")

    def commit(self, result: FoldResult, fold: int | None = None) -> bool:
        """Commits the result of a fold. False: the round has changed since, and nothing was done.

        `fold` is the right to fold. Raises FoldLost where another process has it now.
        """

        def change(state: State, now: float) -> tuple[State, bool]:
            if not comparisons.same_fold(state.round, result.round):
                return state, False
            if result.culprit:
                return scheduler.unfit(state, self.config, result.culprit, result.failure, now), True
            if result.failure:
                return scheduler.fold_failed(state, result.failure, now), True
            after = scheduler.committed(
                state,
                self.config,
                ModelFile(digest=result.digest, nbytes=result.nbytes, blake3=result.blake3),
                now,
                nbytes_down=self.presence.nbytes_down + self.presence.nbytes_elsewhere,
                stored=result.history,
                factors=result.factors,
            )
            return after, True

        kind = RoundKind.UNLEARN if result.round.kind in (RoundKind.RESET, RoundKind.ROLLBACK) else result.round.kind
        hit(f"commit.{kind}.before")
        committed = self.call(change, fold=fold)
        hit(f"commit.{kind}.after")
        if not committed:
            # The model that was folded for nothing.
            self.delete_orphans()
        return committed

    def fold_ready(self) -> None:
        """Folds and commits all closed rounds in this thread. For callers without an event loop."""
        while (current := self.round_to_fold()) is not None and (fold := self.begin_fold()) is not None:
            try:
                self.commit(self.fold(current), fold)
            finally:
                self.end_fold()

    def close(self) -> None:
        with self._lock, suppress(PufError):
            self._time.record_last()
        self.store.close()
