"""Keeps the core's state: applies functions to it, persists the difference, folds rounds, tells who waits.

What is to be done next is read off the state (a round in FOLDING wants to be folded, files without a record want to be
deleted), so a restart continues where the last process stopped.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

from puf_common.modelfile import write_header
from puf_server.aggregate import Contribution, NotFinite, fold
from puf_server.core import schedule
from puf_server.core.state import Round, RoundPhase, State
from puf_server.files import FileSource
from puf_server.store import Store, spool_name

__all__ = ["Engine", "Folded"]

T = TypeVar("T")


@dataclass(frozen=True)
class Folded:
    """What a fold brought: a model file in place, or the reason why there is none."""

    round: Round
    digest: str = ""
    nbytes: int = 0
    failure: str = ""


class Engine:
    """One federation in memory and on disk. Safe to use from several threads."""

    def __init__(self, store: Store, clock: Callable[[], float], on_change: Callable[[], None] = lambda: None) -> None:
        self.store = store
        self.config = store.config
        self.manifest = store.manifest
        self.clock = clock
        self.on_change = on_change
        self._lock = threading.Lock()
        loaded = store.load()
        store.sweep(loaded, everything=True)
        self.state = loaded
        self.call(lambda state, now: (schedule.restarted(state, self.config, now), None))

    def call(self, change: Callable[[State, float], tuple[State, T]]) -> T:
        """Applies a change, lets the federation advance, and keeps the result before anybody sees it."""
        with self._lock:
            before, now = self.state, self.clock()
            after, result = change(before, now)
            after = schedule.advance(after, self.config, now)
            self.store.save(before, after)
            self.state = replace(after, notes=()) if after.notes else after
            if after.round is not before.round or after.models is not before.models:
                self.store.sweep(after)
        if after is not before:
            self.on_change()
        return result

    def tick(self) -> None:
        self.call(lambda state, now: (state, None))

    def sweep(self) -> None:
        """Deletes files that no record names, while no booking is under way."""
        with self._lock:
            self.store.sweep(self.state)

    def fold_wanted(self) -> Round | None:
        current = self.state.round
        return current if current is not None and current.phase is RoundPhase.FOLDING else None

    def fold(self, current: Round) -> Folded:
        """Sums up a closed round and writes the model file. Changes no state: heavy work, for any thread."""
        state = self.state
        version = state.version + 1
        sha = hashlib.sha256()
        file = self.store.new_model(version)
        try:
            with ExitStack() as stack:
                base = stack.enter_context(self.store.model_source(state.models[current.base]))
                contributions = [
                    Contribution(
                        client=slot.client,
                        part=slot.part,
                        samples=current.received[slot.key].samples,
                        source=stack.enter_context(FileSource(self.store.spool_path(spool_name(current, slot.key)))),
                        scale=slot.scale if slot.flip == "server" else 1.0,
                        negated=slot.negated,
                    )
                    for slot in current.slots
                    if slot.key in current.received
                ]
                ordinary = current.denominator is None

                def write(block: memoryview) -> None:
                    sha.update(block)
                    file.write(block)

                # The digest is known only at the end, so it is not in the file's header.
                file.write(write_header(self.manifest, {"version": str(version), "round": str(current.number)}))
                fold(
                    self.manifest,
                    base,
                    contributions,
                    write,
                    denominator=current.denominator,
                    server_lr=self.config.plan.server_lr if ordinary else 1.0,
                )
            self.store.publish_model(file, version, sha.hexdigest())
        except NotFinite as error:
            file.discard()
            return Folded(current, failure=f"round {current.number}: {error.message}")
        except BaseException:
            file.discard()
            raise
        return Folded(current, sha.hexdigest(), self.manifest.nbytes("model"))

    def folded(self, result: Folded) -> None:
        """Commits a fold, unless the round has changed since (somebody's slot was taken out)."""

        def change(state: State, now: float) -> tuple[State, None]:
            current = state.round
            if current is None or (current.number, current.attempt, current.revision, current.phase) != (
                result.round.number,
                result.round.attempt,
                result.round.revision,
                RoundPhase.FOLDING,
            ):
                return state, None
            if result.failure:
                return schedule.fold_failed(state, result.failure, now), None
            return schedule.committed(state, self.config, digest=result.digest, nbytes=result.nbytes, now=now), None

        self.call(change)

    def settle(self) -> None:
        """Folds whatever is ready, here and now. For callers without an event loop."""
        while (current := self.fold_wanted()) is not None:
            self.folded(self.fold(current))

    def close(self) -> None:
        self.store.close()
