"""The state of one federation: applies changes, persists them, notifies listeners.

The state itself says what is to be done next: a round in FOLDING is to be folded, a file without a record is to be
deleted. So a restart continues where the last process stopped.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from puf_common.errors import PufError, StorageCorrupted, Unavailable
from puf_common.logging import get_logger
from puf_server.aggregation.folder import Folder, FoldResult
from puf_server.aggregation.verified import DamagedFile
from puf_server.core import clock_changes, rounds, scheduler
from puf_server.core.commits import ModelFile
from puf_server.core.state.presence import Presence, after_restart, settled
from puf_server.core.state.rounds import Round, RoundKind, RoundPhase
from puf_server.core.state.state import AuditNote, State
from puf_server.engine import comparisons
from puf_server.engine.clock import ClockWatch, FederationClock
from puf_server.engine.log_purge import LogPurge
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
# Seconds between two records of the time.
_RECORD_SECONDS = 300.0

# Events that the operator must look into.
_ALARMS = {
    "ticket.failed": "A REQUEST TO BE FORGOTTEN HAS FAILED: nothing was forgotten",
    "ticket.reopened": "a client that was forgotten is known again; its request is open again",
    "federation.halted": "the federation has halted and waits for the operator",
}


class Folds(Protocol):
    """Computes the model of a closed round."""

    def fold(self, state: State, current: Round) -> FoldResult: ...


class Engine:
    """One federation in memory and on disk. Safe to use from any thread.

    One lock orders all changes. `state` is immutable and may be read without the lock. `folder` computes the models.
    """

    def __init__(self, store: Store, clock: Callable[[], float], folder: Folds | None = None) -> None:
        self.store = store
        self.config = store.config
        self.manifest = store.manifest
        self.clock = clock
        self.troubles = Troubles()
        self._folder = folder or Folder(store)
        self.presence = Presence()
        self._listeners: list[Listener] = []
        self._advanced: State | None = None
        self._lock = threading.Lock()
        self._deleting = threading.Lock()
        self._purge = LogPurge(store, self.troubles)
        self._watch = ClockWatch(clock, self.troubles, self._move_clock) if isinstance(clock, FederationClock) else None
        self._recorded_at = -math.inf
        try:
            self._recover()
        except BaseException:
            store.close()
            raise

    def _recover(self) -> None:
        """Verifies files before the state relies on them: models exist, updates are whole, all other files go."""
        self.state = self.store.load()
        self.store.require_files(self.state)
        self._verify_audit_log()
        if self._watch is not None:
            self._watch.start(self.store.last_time(), partial(clock_changes.deadline_between, self.state))
        self.verify_spool()
        self.call(
            lambda state, now: (scheduler.restarted(state, self.config, now), None),
            lambda _, now: after_restart(self.state, now),
        )
        self.store.delete_orphans(lambda: self.state, everything=True)
        self._purge.run()
        self.store.never_wait()

    def _verify_audit_log(self) -> None:
        """Shows a damaged audit log. The federation is served: its state does not depend on the log."""
        fault = self.store.audit_fault()
        if fault:
            log.error("the audit log is damaged", why=fault)
            self.troubles.report(
                Trouble.AUDIT, f"{fault}; `puf-server audit verify` tells more, a backup has the entry"
            )

    def subscribe(self, listener: Listener) -> None:
        """Calls `listener` with the state before and after each change, in order and under the lock: it must be quick."""
        self._listeners.append(listener)

    def call(
        self,
        change: Callable[[State, float], tuple[State, T]],
        attend: Callable[[Presence, float], Presence] = lambda presence, _: presence,
    ) -> T:
        """Applies a change, lets the federation advance, and persists the new state before any caller sees it.

        `attend` changes the presence, after `change` has read the old one. Where another process writes to the database,
        both are called again, at most for some seconds; no other call waits for that.
        """
        return self._without_waiting(lambda: self._call(change, attend))

    def attend(self, change: Callable[[Presence, float], Presence]) -> None:
        """Changes the presence in a way that lets nothing advance and needs no record."""
        with self._lock:
            self.presence = change(self.presence, self.clock())

    def _without_waiting(self, work: Callable[[], T]) -> T:
        """Repeats `work`, which takes the lock, while another process writes to the database. Waits without the lock."""
        give_up, moved = time.monotonic() + _BUSY_SECONDS, False
        while True:
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
            time.sleep(0.0 if moved else _BUSY_PAUSE)

    def catch_up(self) -> None:
        """Adopts the newest state where another process has changed it."""
        with self._lock:
            before = self.state
            newest = self.store.newer(before)
            if newest is None:
                return
            self.state = newest
            self.presence = settled(self.presence, before, newest)
            for listener in self._listeners:
                listener(before, newest)

    def _call(
        self, change: Callable[[State, float], tuple[State, T]], attend: Callable[[Presence, float], Presence]
    ) -> T:
        with self._lock:
            before, now = self.state, self.clock()
            after, result = change(before, now)
            presence = settled(attend(self._with_disk(self.presence, before), now), before, after)
            after = scheduler.advance(after, presence, self.config, now, since=self._advanced)
            completed = after.tickets is not before.tickets and comparisons.completed(after) > comparisons.completed(
                before
            )
            if completed:
                hit("completion.before")
            self._replace(before, after, settled(presence, before, after))
            self._advanced = self.state
            if completed:
                hit("completion.after")
                self._purge.want()
            if after.round is not before.round and self.round_to_fold() is not None:
                hit("round.closed")
        if (
            after.models is not before.models
            or after.history is not before.history
            or not comparisons.only_more_arrived(before.round, after.round)
        ):
            self.delete_orphans()
        if completed:
            self._mark_completed()
            self._purge.run()
        return result

    def _mark_completed(self) -> None:
        try:
            self.store.mark_completed()
        except (PufError, OSError) as error:
            # The request is completed. The next one writes the mark.
            log.error("a completed request is not marked beside the database", error=str(error))

    def _replace(self, before: State, after: State, presence: Presence, now: float | None = None) -> None:
        """Persists and publishes a new state, and records the time if it is given. The caller holds the lock."""
        self._reported(lambda: self.store.save(before, after, now))
        self.state = replace(after, notes=()) if after.notes else after
        self.presence = presence
        for note in after.notes:
            _log(note, after.number)
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
        if self._watch is not None:
            self._watch.check()
        self.call(lambda state, now: (state, None))
        self._report_space()
        self._purge.run()
        self._record_time()

    def _with_disk(self, presence: Presence, state: State) -> Presence:
        """The presence with the disk's space, where the next step may open a round."""
        collecting = state.round is not None and state.round.phase is RoundPhase.COLLECTING
        return presence if collecting else replace(presence, disk=self.store.disk_space())

    def _report_space(self) -> None:
        lacking = scheduler.lacks_space(self.state, self.presence, self.config, self.clock())
        if not lacking:
            self.troubles.clear(Trouble.DISK)
        elif self.troubles.report(Trouble.DISK, lacking):
            log.error("the disk has no space for the next round", why=lacking)

    def _record_time(self) -> None:
        """Stores the time now and then, for the next start. After a failed write this finds out whether writing works."""
        now = self.clock()
        due = self._watch is not None and abs(now - self._recorded_at) >= _RECORD_SECONDS
        if not due and Trouble.STATE not in self.troubles.open():
            return

        def record() -> None:
            with self._lock:
                self._reported(lambda: self.store.record_time(now))

        self._without_waiting(record)
        self._recorded_at = now

    def accept_clock(self) -> None:
        """The operator says that the system's clock is right. Has no effect where it did not jump."""
        if self._watch is not None:
            self._watch.accept()

    def _move_clock(self, seconds: float, accepted: bool) -> None:
        """Moves the federation's clock, and everything that waits for a duration."""
        clock = self.clock
        assert isinstance(clock, FederationClock)

        def move() -> None:
            with self._lock:
                before = self.state
                after = clock_changes.moved(before, seconds)
                now = clock() + seconds if accepted else None
                if now is not None:
                    # The time is recorded with it: a start after a crash must not take the accepted time for a jump.
                    after = after.note("clock.accepted", now, seconds=round(seconds))
                self._replace(before, after, self.presence.moved(seconds), now)
                clock.move(seconds)

        self._without_waiting(move)

    def delete_orphans(self) -> None:
        """Deletes files that no record names. Runs outside the engine's lock."""
        try:
            with self._deleting:
                hit("orphans.before_delete")
                self.store.delete_orphans(self._newest)
                hit("orphans.after_delete")
            self.troubles.clear(Trouble.FILES)
        except (OSError, DatabaseBusy) as error:
            # The change that made them superfluous stands; the next deletion removes them. No receipt is issued until then.
            log.error("files not deleted yet", error=str(error))
            self.troubles.report(Trouble.FILES, f"files that no record names are not deleted, trying again: {error}")

    def _newest(self) -> State:
        """The newest state, also where a process that took the place of this one has changed it."""
        self.catch_up()
        return self.state

    def verify_spool(self) -> None:
        """Asks again for updates that are booked and not on disk as they were sent. Reads files outside the lock."""
        checked = self.state.round
        damaged = self.store.damaged_updates(checked)
        if damaged and checked is not None:
            self._lose(checked, damaged)

    def _lose(self, checked: Round, damaged: Mapping[str, str]) -> None:
        """Deletes the damaged updates of `checked` and asks for them again, each with the reason."""
        # Before the clients are asked: a new file has the same name.
        for key in damaged:
            self.store.delete_update(checked, key)

        def lose() -> None:
            with self._lock:
                before, now = self.state, self.clock()
                after, current = before, before.round
                for key, why in damaged.items():
                    # The round may have changed meanwhile, and the file may be gone because of that.
                    if current is not None and current.received.get(key) is checked.received[key]:
                        log.error("an update is lost; its client is asked again", key=key, why=why)
                        after = rounds.lose(after, key, now, why)
                self._replace(before, after, self.presence)

        self._without_waiting(lose)

    def round_to_fold(self) -> Round | None:
        """The closed round whose model is not computed yet, if there is one."""
        current = self.state.round
        return current if current is not None and current.phase is RoundPhase.FOLDING else None

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
            self._lose(current, {error.key: "it does not match its digest"})
            return FoldResult(current, failure=error.message)
        except OSError as error:
            # A damaged update is deleted before its loss is recorded. The record may have failed.
            if not isinstance(error, Unavailable):
                self.verify_spool()
            if comparisons.same_fold(self.state.round, current):
                raise
            return FoldResult(current, failure="the round changed while its updates were read")

    def commit(self, result: FoldResult) -> bool:
        """Commits the result of a fold. False: the round has changed since, and nothing was done."""

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
                nbytes_down=self.presence.nbytes_down,
                stored=result.history,
                factors=result.factors,
            )
            return after, True

        kind = RoundKind.UNLEARN if result.round.kind in (RoundKind.RESET, RoundKind.ROLLBACK) else result.round.kind
        hit(f"commit.{kind}.before")
        committed = self.call(change)
        hit(f"commit.{kind}.after")
        return committed

    def fold_ready(self) -> None:
        """Folds and commits all closed rounds in this thread. For callers without an event loop."""
        while (current := self.round_to_fold()) is not None:
            self.commit(self.fold(current))

    def close(self) -> None:
        if self._watch is not None:
            with suppress(PufError):
                self.store.record_time(self.clock())
        self.store.close()


def _log(note: AuditNote, number: int) -> None:
    """Writes a line of the audit log to the process log, as an error where the operator must act."""
    if note.event in _ALARMS:
        log.error(_ALARMS[note.event], **note.facts)
    else:
        log.info(note.event, **{"round": number, **note.facts})
