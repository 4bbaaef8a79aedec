"""Keeps the core's state: applies functions to it, persists the difference, folds rounds, tells who waits.

What is to be done next is read off the state (a round in FOLDING wants to be folded, files without a record want to be
deleted), so a restart continues where the last process stopped.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

from puf_common.errors import Mismatch, NotYours
from puf_common.logging import get_logger
from puf_common.receipts import receipt_file
from puf_common.receipts.receipt_file import Receipt
from puf_common.receipts.signing import fingerprint
from puf_common.tensors.digests import hasher
from puf_common.tensors.model_file import write_header
from puf_common.version import VERSION
from puf_server.aggregation.fold import Contribution, NotFinite, Source, fold
from puf_server.aggregation.history_writer import kept_source, remember
from puf_server.aggregation.method_rules import Incoming, combine
from puf_server.core import methods, rounds, scheduler, tickets
from puf_server.core.methods.layers import outputs
from puf_server.core.state.rounds import Assignment, HistoryRecord, Round, RoundKind, RoundPhase
from puf_server.core.state.state import AuditNote, State
from puf_server.core.state.tickets import TicketState
from puf_server.core.unlearning import history, reopen
from puf_server.core.unlearning import receipt_content as receipt
from puf_server.failpoints import hit
from puf_server.storage.durable import FileSource
from puf_server.storage.state_store import Store, audit_head, audit_lines, spool_name

__all__ = ["Engine", "Folded", "read_own"]

T = TypeVar("T")
Writer = Callable[[memoryview], object]
log = get_logger(__name__)

_ALARMS = {
    "ticket.failed": "A REQUEST TO BE FORGOTTEN HAS FAILED: nothing was forgotten",
    "ticket.reopened": "a client that was forgotten is known again; its request is open again",
    "federation.halted": "the federation has halted; look into it, then run `puf-server resume`",
}


@dataclass(frozen=True)
class Folded:
    """What a fold brought: a model file in place, or the reason why there is none."""

    round: Round
    digest: str = ""
    nbytes: int = 0
    blake3: str = ""
    failure: str = ""
    remembered: tuple[HistoryRecord, ...] = ()
    # Whose update made it fail, where that can be told.
    culprit: str = ""


def read_own(file: bytes, federation: str, key: bytes) -> Receipt:
    """A receipt that this federation has signed."""
    shown = receipt_file.read(file)
    if shown.federation != federation:
        raise Mismatch(f"the receipt is of federation {shown.federation}, this is {federation}")
    if shown.key != key:
        raise Mismatch(
            f"the receipt is signed with the key {shown.key_fingerprint}, this federation's is {fingerprint(key)}"
        )
    return shown


class Engine:
    """One federation in memory and on disk. Safe to use from several threads."""

    def __init__(self, store: Store, clock: Callable[[], float], on_change: Callable[[], None] = lambda: None) -> None:
        self.store = store
        self.config = store.config
        self.manifest = store.manifest
        self.clock = clock
        self.on_change = on_change
        # What is tried again and again without success, for the operator's eyes; empty when all is well.
        self.trouble = ""
        self._unscrubbed = True
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
        self.mend()
        self.call(lambda state, now: (scheduler.restarted(state, self.config, now), None))
        self.store.sweep(self.state, everything=True)
        self._scrub()

    def call(self, change: Callable[[State, float], tuple[State, T]]) -> T:
        """Applies a change, lets the federation advance, and keeps the result before anybody sees it."""
        with self._lock:
            before, now = self.state, self.clock()
            after, result = change(before, now)
            after = scheduler.advance(after, self.config, now, since=self._advanced)
            completed = after.tickets is not before.tickets and _completed(after) > _completed(before)
            if completed:
                hit("completion.before")
            self.store.save(before, after)
            self.state = self._advanced = replace(after, notes=()) if after.notes else after
            for note in after.notes:
                # What the audit log says, for whoever reads logs: round, client and ticket are among the facts.
                log.info(note.event, **{"round": after.number, **note.facts})
            if after is not before:
                self.on_change()
            _tell(after.notes)
            if completed:
                hit("completion.after")
                self._unscrubbed = True
            if after.round is not before.round and self.fold_wanted() is not None:
                hit("round.closed")
            if (
                after.models is not before.models
                or after.history is not before.history
                or not _only_more_arrived(before.round, after.round)
            ):
                self._sweep()
            self._scrub()
        return result

    def tick(self) -> None:
        self.call(lambda state, now: (state, None))

    def sweep(self) -> None:
        """Deletes files that no record names, while no booking is under way."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        try:
            hit("sweep.before")
            self.store.sweep(self.state)
            hit("sweep.after")
        except OSError as error:
            # The change that made them superfluous stands; the next sweep takes them.
            log.error("files not deleted yet", error=str(error))

    def _scrub(self) -> None:
        """After a completed request: older versions of its client's records must not outlive it in the database's log."""
        if self._unscrubbed:
            try:
                self._unscrubbed = not self.store.scrub()
            except sqlite3.Error as error:
                # A full disk, mostly; the next change tries again.
                log.error("old records not wiped yet", error=str(error))

    def mend(self) -> None:
        """Asks again for updates that are booked and not on disk as they were sent."""
        with self._lock:
            after, now = self.state, self.clock()
            for key, why in self.store.damaged(after.round).items():
                log.error("an update is lost; its client is asked again", key=key, why=why)
                after = rounds.lose(after, key, now, why)
            self.store.save(self.state, after)
            self.state = replace(after, notes=())
        self.on_change()

    def receipt(self, ticket_id: str, name: str | None = None) -> bytes:
        """The signed receipt of a completed ticket, of the caller's own unless the operator (None) asks."""
        with self._lock:
            state, head = self.state, audit_head(self.store.db)
            lines = list(audit_lines(self.store.db, *receipt.EVENTS))
        ticket = tickets.find(state, name, ticket_id)
        content = receipt.build(state, self.config, ticket, head=head, lines=lines, now=self.clock(), software=VERSION)
        return receipt_file.issue(content, self.store.key)

    def present(self, file: bytes, name: str | None = None) -> tuple[bool, str, str]:
        """Takes a receipt of this federation; whether that opened its ticket again, why, and which ticket."""
        shown = read_own(file, self.config.id, self.store.key.public)
        if name is not None and shown.client != name:
            raise NotYours(f"the receipt is not one of {name}", client=name)

        def change(state: State, now: float) -> tuple[State, tuple[bool, str, str]]:
            state, reopened, why = reopen.reopen(state, self.config, shown.content, now)
            return state, (reopened, why, shown.ticket)

        return self.call(change)

    def fold_wanted(self) -> Round | None:
        current = self.state.round
        return current if current is not None and current.phase is RoundPhase.FOLDING else None

    def fold(self, current: Round) -> Folded:
        """Sums up a closed round and writes the model file. Changes no state: heavy work, for any thread."""
        state = self.state
        version = state.newest + 1
        sha, quick = hasher("sha256"), hasher("blake3")
        half, written = self.manifest.nbytes("model") // 2, 0
        hit("fold.start")
        file = self.store.new_model(version)
        try:
            with ExitStack() as stack:
                base = stack.enter_context(self.store.model_source(state.models[current.base]))

                def write(block: memoryview) -> None:
                    nonlocal written
                    sha.update(block)
                    quick.update(block)
                    file.write(block)
                    if written <= half < written + len(block):
                        hit("fold.middle")
                    written += len(block)

                # The digest is known only at the end, so it is not in the file's header.
                file.write(write_header(self.manifest, {"version": str(version), "round": str(current.number)}))
                if current.combine.rule == "fold":
                    self._sum(state, current, base, write, stack)
                else:
                    self._combine(state, current, base, write, stack)
            hit("fold.end")
            self.store.publish_model(file, version, sha.hexdigest())
            kinds = history.wanted(state, self.config, current)
            kept = remember(self.store, state, current, kinds, server_lr=self._server_lr(current))
        except NotFinite as error:
            file.discard()
            failure = f"round {current.number}: {error.message}"
            return Folded(current, failure=failure, culprit=error.facts.get("client", ""))
        except BaseException:
            file.discard()
            raise
        return Folded(
            current, sha.hexdigest(), self.manifest.nbytes("model"), blake3=quick.hexdigest(), remembered=kept
        )

    def _server_lr(self, current: Round) -> float:
        return self.config.plan.server_lr if current.denominator is None else 1.0

    def _update(self, current: Round, assignment: Assignment, stack: ExitStack) -> FileSource:
        return stack.enter_context(self.store.files.read(self.store.spool_path(spool_name(current, assignment.key))))

    def _sum(self, state: State, current: Round, base: Source, write: Writer, stack: ExitStack) -> None:
        """The one rule, over what came and over kept updates that enter as if they had."""
        contributions = [
            Contribution(
                client=assignment.client,
                part=assignment.part,
                samples=current.received[assignment.key].samples,
                source=self._update(current, assignment, stack),
                scale=assignment.scale if assignment.flip == "server" else 1.0,
                negated=assignment.negated,
            )
            for assignment in current.assignments
            if assignment.key in current.received
        ]
        for key in current.combine.history:
            kept = state.history[key]
            source = stack.enter_context(kept_source(self.store, kept))
            contributions.append(Contribution(client=kept.client, part="main", samples=kept.samples, source=source))
        fold(
            self.manifest,
            base,
            contributions,
            write,
            denominator=current.denominator,
            server_lr=self._server_lr(current),
        )

    def _combine(self, state: State, current: Round, base: Source, write: Writer, stack: ExitStack) -> None:
        """A method's own rule."""
        method = methods.serving_round(self.config.forgetting, current)
        incoming = [
            Incoming(
                client=assignment.client,
                samples=current.received[assignment.key].samples,
                source=self._update(current, assignment, stack),
                layout=outputs(self.manifest, assignment.outputs),
            )
            for assignment in current.assignments
            if assignment.key in current.received
        ]
        for key in current.combine.history:
            kept = state.history[key]
            source = stack.enter_context(kept_source(self.store, kept))
            incoming.append(Incoming(client=kept.client, samples=kept.samples, source=source, layout=self.manifest))
        others = {
            name: stack.enter_context(self.store.model_source(state.models[version]))
            for name, version in current.combine.others.items()
        }
        combine(
            self.manifest,
            base,
            others,
            incoming,
            write,
            lambda updates: method.rule(current.combine, self.manifest, updates),
            measure=method.measures,
        )

    def folded(self, result: Folded) -> None:
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
                now=now,
                remembered=result.remembered,
            )
            return after, None

        kind = RoundKind.UNLEARN if result.round.kind in (RoundKind.RESET, RoundKind.ROLLBACK) else result.round.kind
        point = f"commit.{kind}"
        hit(f"{point}.before")
        self.call(change)
        hit(f"{point}.after")

    def settle(self) -> None:
        """Folds whatever is ready, here and now. For callers without an event loop."""
        while (current := self.fold_wanted()) is not None:
            self.folded(self.fold(current))

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
