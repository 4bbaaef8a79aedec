"""Folds rounds as they close, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from puf_common.errors import StorageCorrupted
from puf_common.logging import get_logger
from puf_server.core.state.rounds import Round
from puf_server.engine.engine import Engine
from puf_server.engine.troubles import Trouble
from puf_server.rpc.calls import Threads
from puf_server.storage.object_store import StoreUnavailable
from puf_server.storage.state_database import FoldLost

_RETRY_SECONDS = 0.5
# Another server folds; it may die.
_TAKEN_SECONDS = 1.0
# Each attempt reads all files of the round.
_SLOW_SECONDS = 5.0
log = get_logger(__name__)


@dataclass(frozen=True)
class RoundTimes:
    """Seconds that a round took, by phase."""

    round: Round
    collecting: float
    folding: float
    committing: float


class FoldLoop:
    """A task of the event loop that sums closed rounds in a worker thread. It ends between two rounds."""

    def __init__(self, engine: Engine, threads: Threads, took: Callable[[RoundTimes], None]) -> None:
        """`took` is called on the event loop after each commit."""
        self._engine = engine
        self._threads = threads
        self._took = took
        self._wanted = asyncio.Event()
        self._stopping = asyncio.Event()

    def wake(self) -> None:
        """Checks for a closed round. Call it on the event loop."""
        self._wanted.set()

    def end(self) -> None:
        """Ends the task after the round that it is summing. Call it on the event loop."""
        self._stopping.set()
        self._wanted.set()

    async def run(self) -> None:
        while not self._stopping.is_set():
            await self._wanted.wait()
            self._wanted.clear()
            while not self._stopping.is_set() and (current := self._engine.round_to_fold()) is not None:
                try:
                    if not await self._fold(current):
                        await self._until_changed(_TAKEN_SECONDS)
                except FoldLost as error:
                    log.warning("round not committed", round=current.number, why=error.message)
                except Exception as error:
                    # Mostly a full disk. Folding must go on when the cause is gone.
                    log.error("round not folded; trying again", round=current.number, error=str(error))
                    message = f"round {current.number} cannot be summed, trying again: {error}"
                    self._engine.troubles.report(Trouble.FOLD, message)
                    slow = isinstance(error, StorageCorrupted | StoreUnavailable)
                    await self._pause(_SLOW_SECONDS if slow else _RETRY_SECONDS)

    async def _pause(self, seconds: float) -> None:
        """Waits before the next attempt. The end of the task ends the wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _until_changed(self, seconds: float) -> None:
        """Waits for the next change of the state, or for the end of the task."""
        self._wanted.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.0 if self._stopping.is_set() else seconds):
                await self._wanted.wait()

    async def _fold(self, current: Round) -> bool:
        """False: another server folds the round."""
        right = await self._threads.run(self._engine.begin_fold)
        if right is None:
            return False
        try:
            await self._fold_with(right, current)
        finally:
            await self._threads.run(self._engine.end_fold)
        return True

    async def _fold_with(self, right: int, current: Round) -> None:
        closed = time.monotonic()
        result = await self._threads.run_on_files(self._engine.fold, current)
        folded = time.monotonic()
        counts = await self._threads.run(self._engine.commit, result, right)
        self._engine.troubles.clear(Trouble.FOLD)
        if not counts:
            return
        committed = time.monotonic()
        opened_seconds = self._engine.clock() - current.opened_at - (committed - closed)
        self._took(RoundTimes(current, max(0.0, opened_seconds), folded - closed, committed - folded))
