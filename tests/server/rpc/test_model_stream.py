"""Models that several clients fetch at the same time."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import pytest

import puf_server.rpc.model_stream
from puf_common.errors import StorageCorrupted
from puf_common.tensors.chunk_frames import chunk_frame, chunk_of
from puf_server.rpc.calls import Threads, in_thread
from puf_server.rpc.model_stream import Content, ModelStreams
from puf_server.storage.durable import FileSource

T = TypeVar("T")
CHUNK = 10
CONTENT = bytes(range(95))
FRAMES = [chunk_frame(start, CONTENT[start : start + CHUNK]) for start in range(0, len(CONTENT), CHUNK)]


def run(scene: Callable[[], Awaitable[T]]) -> T:
    async def timed() -> T:
        async with asyncio.timeout(20):
            return await scene()

    return asyncio.run(timed())


class Source(FileSource):
    """A file that counts its reads and can hold them up."""

    def __init__(self, path: Path, files: Files) -> None:
        super().__init__(path)
        self._files = files

    def read_into(self, offset: int, out: memoryview) -> None:
        assert self._files.may_read.wait(20)
        assert threading.current_thread().name.startswith("puf-files")
        self._files.reads[offset] += 1
        super().read_into(offset, out)

    def close(self) -> None:
        self._files.closed += 1
        super().close()


class Files:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.opened = self.closed = 0
        self.reads: Counter[int] = Counter()
        self.may_read = threading.Event()
        self.may_read.set()

    def content(self, name: str = "1") -> Content:
        return Content(name, len(CONTENT), lambda: self._read(name))

    def _read(self, name: str) -> FileSource:
        assert threading.current_thread().name.startswith("puf-files")
        path = self._folder / name
        if not path.exists():
            raise StorageCorrupted("the file is missing")
        self.opened += 1
        return Source(path, self)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.setattr(puf_server.rpc.model_stream, "CHUNK_BYTES", CHUNK)
    (tmp_path / "1").write_bytes(CONTENT)
    return Files(tmp_path)


@pytest.fixture
def streams(files: Files) -> Iterator[ModelStreams]:
    threads = Threads()

    async def on_files(function: Callable[..., T], *args: object) -> T:
        return await in_thread(threads.files, function, *args)

    yield ModelStreams(on_files)
    threads.shutdown()


async def fetched(streams: ModelStreams, files: Files, name: str = "1", begin: int = 0) -> list[bytes]:
    return [frame async for frame in streams.frames(files.content(name), begin)]


def test_the_frames_of_a_model_are_its_bytes_in_order(streams: ModelStreams, files: Files) -> None:
    frames = run(lambda: fetched(streams, files))
    assert frames == FRAMES
    assert b"".join(bytes(chunk.data) for frame in frames if (chunk := chunk_of(frame))) == CONTENT
    assert (files.opened, files.closed) == (1, 1)


def test_a_stream_can_begin_inside_a_model(streams: ModelStreams, files: Files) -> None:
    frames = run(lambda: fetched(streams, files, begin=30))
    assert frames == FRAMES[3:]
    assert run(lambda: fetched(streams, files, begin=95)) == []
    assert files.opened == files.closed


def test_clients_that_fetch_together_share_one_file_and_its_frames(streams: ModelStreams, files: Files) -> None:
    async def scene() -> None:
        files.may_read.clear()
        fetching = [asyncio.ensure_future(fetched(streams, files)) for _ in range(20)]
        for _ in range(5):
            await asyncio.sleep(0)
        files.may_read.set()
        assert await asyncio.gather(*fetching) == [FRAMES] * 20

    run(scene)
    assert (files.opened, files.closed) == (1, 1)
    assert set(files.reads.values()) == {1}


def test_a_client_that_is_far_behind_reads_again(streams: ModelStreams, files: Files) -> None:
    async def scene() -> None:
        async with aclosing(streams.frames(files.content())) as slow:
            first = await anext(slow)
            assert await fetched(streams, files) == FRAMES
            assert [first, *[frame async for frame in slow]] == FRAMES

    run(scene)
    assert (files.opened, files.closed) == (1, 1)
    assert files.reads[10] == 2


def test_one_client_that_goes_takes_no_frame_from_the_others(streams: ModelStreams, files: Files) -> None:
    async def scene() -> None:
        files.may_read.clear()
        goes, stays = asyncio.ensure_future(fetched(streams, files)), asyncio.ensure_future(fetched(streams, files))
        await asyncio.sleep(0)
        goes.cancel()
        await asyncio.sleep(0)
        files.may_read.set()
        assert await stays == FRAMES
        with pytest.raises(asyncio.CancelledError):
            await goes

    run(scene)
    assert (files.opened, files.closed) == (1, 1)


def test_the_file_is_closed_after_the_last_read_when_the_last_client_goes(streams: ModelStreams, files: Files) -> None:
    async def scene() -> None:
        files.may_read.clear()
        goes = asyncio.ensure_future(fetched(streams, files))
        while not files.opened:
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
            goes.cancel()
            await asyncio.sleep(0)
        assert files.closed == 0
        files.may_read.set()
        with pytest.raises(asyncio.CancelledError):
            await goes

    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    run(scene)
    assert (files.opened, files.closed) == (1, 1)
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_missing_file_is_reported_to_each_client_and_tried_again(streams: ModelStreams, files: Files) -> None:
    async def scene() -> None:
        for _ in range(2):
            with pytest.raises(StorageCorrupted, match="missing"):
                await fetched(streams, files, "2")
        assert await fetched(streams, files) == FRAMES

    run(scene)
