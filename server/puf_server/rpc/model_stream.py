"""Models on their way to clients: read and encoded once for all clients that fetch the same version at the same time.

Nothing stays in memory when no client fetches, so that a deleted model is gone here, too. While clients fetch a model, at
most `_WINDOW` frames of it are held, so that memory does not grow with the model.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple, cast

from puf_common.tensors.chunk_frames import chunk_frame
from puf_common.tensors.chunks import CHUNK_BYTES
from puf_server.rpc.calls import to_its_end
from puf_server.storage.stored_files import StoredFile

# Clients that fetch at the same time are seldom further apart. One that is further behind reads frames again.
_WINDOW = 8

Run = Callable[..., Any]


class Content(NamedTuple):
    """What is sent: a model or a difference. `digest` identifies it, `read` opens its file."""

    digest: str
    nbytes: int
    read: Callable[[], StoredFile]


class ModelStreams:
    """Use on one event loop. `run` moves a blocking call to a thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._open: dict[str, _Stream] = {}

    async def frames(self, content: Content, begin: int = 0) -> AsyncGenerator[bytes, None]:
        """The chunk frames from byte `begin` on, in order."""
        stream = self._open.get(content.digest)
        if stream is None:
            stream = self._open[content.digest] = _Stream(content, self._run)
        stream.readers += 1
        try:
            for offset in range(begin, content.nbytes, CHUNK_BYTES):
                yield await stream.frame(offset)
        finally:
            stream.readers -= 1
            if not stream.readers:
                del self._open[content.digest]
                await to_its_end(stream.close())


class _Stream:
    """One file and the frames that were read last."""

    def __init__(self, content: Content, run: Run) -> None:
        self.readers = 0
        self._nbytes = content.nbytes
        self._run = run
        self._opening: asyncio.Future[StoredFile] = asyncio.ensure_future(run(content.read))
        self._frames: OrderedDict[int, asyncio.Future[bytes]] = OrderedDict()
        self._reading: set[asyncio.Future[bytes]] = set()

    async def frame(self, offset: int) -> bytes:
        task = self._frames.get(offset)
        if task is None:
            task = self._frames[offset] = asyncio.ensure_future(self._read_frame(offset))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
            while len(self._frames) > _WINDOW:
                self._frames.popitem(last=False)
        # A client that ends its call must not cancel the frame of the others.
        return task.result() if task.done() else await asyncio.shield(task)

    async def _read_frame(self, offset: int) -> bytes:
        source = await asyncio.shield(self._opening)

        def encode() -> bytes:
            block = bytearray(min(CHUNK_BYTES, self._nbytes - offset))
            source.read_into(offset, memoryview(block))
            return chunk_frame(offset, block)

        return cast(bytes, await self._run(encode))

    async def close(self) -> None:
        """Closes the file when no thread reads it any more: its descriptor may belong to another file after that."""
        await asyncio.gather(*self._reading, return_exceptions=True)
        (source,) = await asyncio.gather(self._opening, return_exceptions=True)
        if isinstance(source, StoredFile):
            await self._run(source.close)
