"""How many uploads move bytes at the same time, and which uploads are ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest

from puf_common.errors import TooMuch
from puf_server.core.config import Limits
from puf_server.ingest.flow_control import TransferPermit, UploadFrames, UploadLimiter

T = TypeVar("T")


class Sender:
    """The messages of one upload, sent one by one by the test."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self._messages.put_nowait(message)

    def end(self) -> None:
        self._messages.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._messages.get()) is not None:
            yield message


def run(scene: Callable[[], Awaitable[T]], seconds: float = 20.0) -> T:
    async def timed() -> T:
        async with asyncio.timeout(seconds):
            return await scene()

    return asyncio.run(timed())


def admitted(limiter: UploadLimiter, name: str, sender: Sender) -> Any:
    return limiter.admit(name, aiter(sender))


def test_frames_come_in_order_and_end() -> None:
    async def scene() -> list[bytes]:
        sender = Sender()
        sender.send(b"header", b"1", b"2")
        sender.end()
        async with admitted(UploadLimiter(Limits()), "a", sender) as frames:
            assert await anext(frames) == b"header"
            return [frame async for frame in frames]

    assert run(scene) == [b"1", b"2"]


def test_a_stream_without_messages_has_no_frames() -> None:
    async def scene() -> list[bytes]:
        sender = Sender()
        sender.end()
        async with admitted(UploadLimiter(Limits()), "a", sender) as frames:
            return [frame async for frame in frames]

    assert run(scene) == []


def test_a_client_may_send_so_many_updates_at_a_time() -> None:
    async def scene() -> None:
        limiter = UploadLimiter(Limits(uploads_per_client=2))
        async with admitted(limiter, "a", Sender()), admitted(limiter, "a", Sender()):
            with pytest.raises(TooMuch, match="a is sending 2 updates already") as caught:
                async with admitted(limiter, "a", Sender()):
                    pass
            assert caught.value.facts["retry_seconds"] == "1.0"
            async with admitted(limiter, "b", Sender()):
                pass
        async with admitted(limiter, "a", Sender()):
            pass

    run(scene)


def test_uploads_beyond_the_queue_are_refused() -> None:
    async def scene() -> None:
        limiter = UploadLimiter(Limits(uploads=1, queued_uploads=1))
        async with admitted(limiter, "a", Sender()), admitted(limiter, "b", Sender()):
            with pytest.raises(TooMuch, match="too many updates wait"):
                async with admitted(limiter, "c", Sender()):
                    pass

    run(scene)


def test_an_upload_waits_for_a_permit_and_gets_it_when_another_ends() -> None:
    async def scene() -> None:
        limiter = UploadLimiter(Limits(uploads=1))
        first, second = Sender(), Sender()
        first.send(b"1")
        second.send(b"2")
        async with admitted(limiter, "b", second) as waiting:
            async with admitted(limiter, "a", first) as frames:
                assert await anext(frames) == b"1"
                blocked = asyncio.ensure_future(anext(waiting))
                done, _ = await asyncio.wait([blocked], timeout=0.05)
                assert not done
            assert await blocked == b"2"

    run(scene)


def test_a_pause_gives_the_permit_to_the_next_and_the_next_frame_takes_one_again() -> None:
    async def scene() -> None:
        # A pause lasts as long as a stall at most.
        limiter = UploadLimiter(Limits(uploads=1, stall_seconds=30))
        pausing, other = Sender(), Sender()
        pausing.send(b"1")
        other.send(b"x")
        async with admitted(limiter, "a", pausing) as frames, admitted(limiter, "b", other) as others:
            assert await anext(frames) == b"1"
            late = asyncio.ensure_future(anext(frames))
            # Comes when the pause of the first has lasted a second.
            assert await anext(others) == b"x"
            pausing.send(b"2")
            done, _ = await asyncio.wait([late], timeout=0.05)
            assert not done
            other.end()
            assert await anext(others, b"over") == b"over"
        async with admitted(limiter, "b", Sender()):
            pass
        late.cancel()

    run(scene)


def test_an_upload_that_sends_nothing_is_ended() -> None:
    async def scene() -> None:
        async with admitted(UploadLimiter(Limits(stall_seconds=0.02)), "a", Sender()) as frames:
            with pytest.raises(TooMuch, match=r"sent nothing for 0\.02 s"):
                await anext(frames)

    run(scene)


def test_an_upload_that_is_too_slow_is_ended_after_the_first_seconds() -> None:
    async def scene() -> int:
        sender = Sender()
        frames = UploadFrames(
            TransferPermit(asyncio.Semaphore(1)), Limits(stall_seconds=0.05, upload_rate=1e9), aiter(sender)
        )
        received = 0

        async def receive() -> None:
            nonlocal received
            while True:
                asyncio.get_running_loop().call_later(0.02, sender.send, b"x")
                await anext(frames)
                received += 1

        with pytest.raises(TooMuch, match=r"slower than 1e\+09 bytes per second"):
            await receive()
        return received

    assert run(scene) >= 1


def test_a_permit_is_acquired_and_released_once() -> None:
    async def scene() -> None:
        permits = asyncio.Semaphore(1)
        permit = TransferPermit(permits)
        await permit.acquire()
        await permit.acquire()
        assert permits.locked()
        permit.release()
        permit.release()
        await permits.acquire()
        assert permits.locked()

    run(scene)


def test_a_long_pause_returns_the_permit_and_a_short_one_does_not() -> None:
    async def scene() -> None:
        permits = asyncio.Semaphore(1)
        permit = TransferPermit(permits)
        await permit.acquire()
        with permit.pausing(30.0):
            await asyncio.sleep(0)
        assert permits.locked()
        with permit.pausing(0.0):
            await permits.acquire()

    run(scene)
