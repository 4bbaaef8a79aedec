"""How a call of the contract runs: errors become statuses, and blocking work moves to threads.

The event loop runs nothing that blocks. A change of state waits for the engine's lock in one pool, files are read and
written in another, so that a slow disk delays no heartbeat and a held lock delays no transfer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import wraps
from typing import Any, TypeVar

from grpc import aio

from puf_common.errors import PufError, Unavailable
from puf_common.logging import get_logger
from puf_common.network.status import abort

Context = aio.ServicerContext[Any, Any]
T = TypeVar("T")
log = get_logger(__name__)

_STATE_THREADS = 8
_FILE_THREADS = 16


class Threads:
    """The pools of one server: `state` for changes of state, `files` for reading and writing tensors."""

    def __init__(self) -> None:
        self.state = ThreadPoolExecutor(_STATE_THREADS, thread_name_prefix="puf-state")
        self.files = ThreadPoolExecutor(_FILE_THREADS, thread_name_prefix="puf-files")

    async def run(self, function: Callable[..., T], *args: object) -> T:
        return await in_thread(self.state, function, *args)

    async def run_on_files(self, function: Callable[..., T], *args: object) -> T:
        return await in_thread(self.files, function, *args)

    def shutdown(self) -> None:
        """Waits until all work is done."""
        self.files.shutdown(wait=True)
        self.state.shutdown(wait=True)


def answered(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Wraps a call with a single answer: errors become statuses, bugs become INTERNAL and a log line."""

    @wraps(method)
    async def call(self: Any, request: Any, context: Context) -> Any:
        async with _statuses(method.__name__, context):
            return await method(self, request, context)

    return call


def streamed(method: Callable[..., AsyncIterator[Any]]) -> Callable[..., Any]:
    """Wraps a call with a stream of answers in the same way."""

    @wraps(method)
    async def call(self: Any, request: Any, context: Context) -> AsyncIterator[Any]:
        async with _statuses(method.__name__, context):
            async for reply in method(self, request, context):
                yield reply

    return call


@asynccontextmanager
async def _statuses(call: str, context: Context) -> AsyncIterator[None]:
    """Ends the call with the status of an error that leaves the block."""
    try:
        yield
    except aio.AbortError:
        raise
    except PufError as error:
        await abort(context, error)
    except OSError as error:
        log.error("disk error", call=call, error=str(error))
        why = error.strerror or error
        await abort(context, Unavailable(f"the server cannot read or write its files: {why}"))
    except Exception as error:
        log.error("internal error", call=call, exc_info=error)
        await abort(context, PufError("internal error; the server's log has more"))


async def to_its_end(work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """The result of `work`, which always runs to its end. A cancelled caller is cancelled after that."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        # Marks an error as seen: the caller that would report it is gone.
        task.exception()
        raise asyncio.CancelledError
    return task.result()


def start(pool: ThreadPoolExecutor, function: Callable[..., T], *args: object) -> asyncio.Future[T]:
    """Begins to run `function` in a thread. Its log lines carry the context of the call."""
    return asyncio.get_running_loop().run_in_executor(pool, copy_context().run, function, *args)


async def in_thread(pool: ThreadPoolExecutor, function: Callable[..., T], *args: object) -> T:
    """The result of `function`, run in a thread. A cancelled caller waits for it: both may use the same files."""
    return await to_its_end(start(pool, function, *args))
