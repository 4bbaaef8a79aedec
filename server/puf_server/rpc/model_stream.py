"""Models on their way out: read and encoded once, shared by everybody who fetches the same version at that time.

Nothing stays in memory when nobody fetches, so a deleted model is gone here, too; and while somebody does, at most
`_WINDOW` frames of it are held, so memory does not grow with the model.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from puf_common.tensors.chunk_frames import chunk_frame
from puf_common.tensors.chunks import CHUNK_BYTES
from puf_server.core.state.models import ModelVersion
from puf_server.storage.durable import FileSource

__all__ = ["SharedModels"]

# Clients that fetch at the same time are seldom further apart; one that is reads for itself.
_WINDOW = 8

Run = Callable[..., Any]


class SharedModels:
    """Use on one event loop. `run` moves a blocking call to a thread, `read` opens a model's file."""

    def __init__(self, run: Run, read: Callable[[ModelVersion], FileSource]) -> None:
        self._run = run
        self._read = read
        self._open: dict[int, _Shared] = {}

    async def frames(self, model: ModelVersion) -> AsyncGenerator[bytes, None]:
        """The chunk frames of a model, in order."""
        async with self._shared(model) as shared:
            for offset in range(0, model.nbytes, CHUNK_BYTES):
                yield await shared.frame(offset)

    @asynccontextmanager
    async def _shared(self, model: ModelVersion) -> AsyncIterator[_Shared]:
        shared = self._open.get(model.version)
        if shared is None:
            shared = self._open[model.version] = _Shared(model, self._read(model), self._run)
        shared.readers += 1
        try:
            yield shared
        finally:
            shared.readers -= 1
            if not shared.readers:
                del self._open[model.version]
                await shared.close()


class _Shared:
    """One model and those who fetch it now."""

    def __init__(self, model: ModelVersion, source: FileSource, run: Run) -> None:
        self.readers = 0
        self._nbytes = model.nbytes
        self._source = source
        self._run = run
        self._frames: OrderedDict[int, asyncio.Task[bytes]] = OrderedDict()

    async def frame(self, offset: int) -> bytes:
        task = self._frames.get(offset)
        if task is None:
            task = self._frames[offset] = asyncio.ensure_future(self._run(self._encode, offset))
            while len(self._frames) > _WINDOW:
                self._frames.popitem(last=False)
        # One reader that hangs up must not take the frame away from the others.
        return task.result() if task.done() else await asyncio.shield(task)

    def _encode(self, offset: int) -> bytes:
        block = bytearray(min(CHUNK_BYTES, self._nbytes - offset))
        self._source.read_into(offset, memoryview(block))
        return chunk_frame(offset, block)

    async def close(self) -> None:
        """After whatever is still being read: the file's number may be another's as soon as it is closed."""
        for task in self._frames.values():
            with suppress(OSError):
                await task
        self._source.__exit__()
