"""Where transfers wait for their turn, and where slow ones lose it.

A place is held while bytes come. Who pauses for a moment gives it to the next and gets one back with the next frame, so
that streams that send nothing hold nobody up. An upload that pauses for long, or crawls, is ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from puf_common.errors import TooMuch
from puf_common.logging import get_logger
from puf_server.core.config import Limits

__all__ = ["Frames", "Gate", "Place"]

# Longer than the pauses of a healthy line, shorter than anybody's patience.
_PAUSE_SECONDS = 1.0

log = get_logger(__name__)


class Place:
    """One transfer's place among those that may move bytes at the same time."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._taken = False

    async def take(self) -> None:
        if not self._taken:
            await self._places.acquire()
            self._taken = True

    def leave(self) -> None:
        if self._taken:
            self._places.release()
            self._taken = False

    @contextmanager
    def pausing(self, seconds: float = _PAUSE_SECONDS) -> Iterator[None]:
        """Around a wait for the other side: a long one costs the place."""
        timer = asyncio.get_running_loop().call_later(seconds, self.leave)
        try:
            yield
        finally:
            timer.cancel()


class Gate:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.places = asyncio.Semaphore(limits.uploads)
        self._inside: Counter[str] = Counter()

    @asynccontextmanager
    async def entered(self, name: str, messages: AsyncIterator[bytes]) -> AsyncIterator[Frames]:
        """The frames of one upload, as long as it keeps to the limits. Raises TooMuch when it does not."""
        limits = self._limits
        if self._inside[name] >= limits.uploads_per_client:
            raise self._refused(name, f"{name} is sending {limits.uploads_per_client} updates already")
        if self._inside.total() >= limits.uploads + limits.queued_uploads:
            raise self._refused(name, "too many updates wait for their turn")
        self._inside[name] += 1
        place = Place(self.places)
        try:
            yield Frames(place, limits, messages)
        except TooMuch as error:
            log.warning("upload ended", client=name, reason=error.message)
            raise
        finally:
            place.leave()
            self._inside[name] -= 1
            if not self._inside[name]:
                del self._inside[name]

    @staticmethod
    def _refused(name: str, why: str) -> TooMuch:
        return TooMuch(f"{why}; try again in a moment", client=name, retry_seconds=_PAUSE_SECONDS)


class Frames:
    """Iterates over the messages of one upload."""

    def __init__(self, place: Place, limits: Limits, messages: AsyncIterator[Any]) -> None:
        self._place = place
        self._limits = limits
        self._messages = aiter(messages)
        # Time that the sender took, without the time that it waited for us.
        self._seconds = 0.0
        self._bytes = 0

    async def first(self) -> Any:
        return await anext(self, None)

    def __aiter__(self) -> Frames:
        return self

    async def __anext__(self) -> Any:
        message = await self._next()
        await self._place.take()
        return message

    async def _next(self) -> Any:
        limits, started = self._limits, time.monotonic()
        try:
            with self._place.pausing(min(_PAUSE_SECONDS, limits.stall_seconds)):
                async with asyncio.timeout(limits.stall_seconds):
                    message = await anext(self._messages)
        except TimeoutError:
            stalled = f"the upload sent nothing for {limits.stall_seconds:g} s"
            raise TooMuch(stalled, limit=limits.stall_seconds) from None
        self._seconds += time.monotonic() - started
        self._bytes += len(message)
        # The first seconds are free: a header, and a line that has to get going.
        if self._bytes < limits.upload_rate * (self._seconds - limits.stall_seconds):
            raise TooMuch(
                f"the upload is slower than {limits.upload_rate:g} bytes per second", limit=limits.upload_rate
            )
        return message
