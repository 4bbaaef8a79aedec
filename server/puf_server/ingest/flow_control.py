"""Limits how many transfers move bytes at the same time, and ends uploads that stall or are too slow.

A transfer holds a permit while bytes move. A pause of a second returns the permit, and the next frame takes one again,
so that streams that send nothing hold up no other stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from puf_common.errors import TooMuch
from puf_server.core.config import Limits

# Longer than the pauses of a healthy connection.
_PAUSE_SECONDS = 1.0


class TransferPermit:
    """The permit of one transfer to move bytes. Use on the event loop only."""

    def __init__(self, permits: asyncio.Semaphore) -> None:
        self._permits = permits
        self._held = False

    async def acquire(self) -> None:
        if not self._held:
            await self._permits.acquire()
            self._held = True

    def release(self) -> None:
        if self._held:
            self._permits.release()
            self._held = False

    @contextmanager
    def pausing(self, seconds: float = _PAUSE_SECONDS) -> Iterator[None]:
        """Put around a wait for the peer: a wait that takes longer than `seconds` returns the permit."""
        timer = asyncio.get_running_loop().call_later(seconds, self.release)
        try:
            yield
        finally:
            timer.cancel()


class UploadLimiter:
    """Admits uploads up to the limits per client and in all. Use on the event loop only."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._permits = asyncio.Semaphore(limits.uploads)
        # The client of each upload under way.
        self._admitted: list[str] = []

    @asynccontextmanager
    async def admit(self, name: str, messages: AsyncIterator[bytes]) -> AsyncIterator[UploadFrames]:
        """The frames of one upload, as long as it keeps to the limits. Raises TooMuch when it does not."""
        limits = self._limits
        if self._admitted.count(name) >= limits.uploads_per_client:
            raise self._refused(name, f"{name} is sending {limits.uploads_per_client} updates already")
        if len(self._admitted) >= limits.uploads + limits.queued_uploads:
            raise self._refused(name, "too many updates wait for their turn")
        self._admitted.append(name)
        permit = TransferPermit(self._permits)
        try:
            yield UploadFrames(permit, limits, messages)
        finally:
            permit.release()
            self._admitted.remove(name)

    @staticmethod
    def _refused(name: str, why: str) -> TooMuch:
        return TooMuch(f"{why}; try again in a moment", client=name, retry_seconds=_PAUSE_SECONDS)


class UploadFrames:
    """Iterates over the messages of one upload. Raises TooMuch when it stalls or is too slow."""

    def __init__(self, permit: TransferPermit, limits: Limits, messages: AsyncIterator[bytes]) -> None:
        self._permit = permit
        self._limits = limits
        self._messages = aiter(messages)
        # Time that the sender took, without the time that it waited for this server.
        self._seconds = 0.0
        self._bytes = 0

    def __aiter__(self) -> UploadFrames:
        return self

    async def __anext__(self) -> bytes:
        limits, started = self._limits, time.monotonic()
        try:
            with self._permit.pausing(min(_PAUSE_SECONDS, limits.stall_seconds)):
                async with asyncio.timeout(limits.stall_seconds):
                    message = await anext(self._messages)
        except TimeoutError:
            stalled = f"the upload sent nothing for {limits.stall_seconds:g} s"
            raise TooMuch(stalled, limit=limits.stall_seconds) from None
        self._seconds += time.monotonic() - started
        self._bytes += len(message)
        # The rate is not checked for as long as a stall may last: a connection needs some time to reach its speed.
        if self._bytes < limits.upload_rate * (self._seconds - limits.stall_seconds):
            raise TooMuch(
                f"the upload is slower than {limits.upload_rate:g} bytes per second", limit=limits.upload_rate
            )
        await self._permit.acquire()
        return message
