"""How calls run: errors become statuses, threads are waited for, pools are independent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, ClassVar, TypeVar

import grpc
import pytest
from grpc import aio
from structlog.contextvars import bind_contextvars, get_contextvars

from puf_common.errors import NotNow, PufError
from puf_common.network.status import error_from
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import federation_pb2_grpc as rpc
from puf_server.rpc.calls import Context, Threads, answered, in_thread, start, streamed, to_its_end

T = TypeVar("T")


def run(scene: Callable[[], Awaitable[T]]) -> T:
    async def timed() -> T:
        async with asyncio.timeout(20):
            return await scene()

    return asyncio.run(timed())


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads()
    yield threads
    threads.shutdown()


class Failing(rpc.FederationServicer):
    """Every call fails in the way that its request names."""

    errors: ClassVar[dict[str, Exception]] = {
        "known": NotNow("later", wait="a moment"),
        "disk": OSError(28, "No space left on device"),
        "bug": KeyError("secret detail"),
    }

    @answered
    async def Leave(self, request: fed.LeaveRequest, context: Context) -> fed.LeaveReply:  # noqa: N802
        if request.session in self.errors:
            raise self.errors[request.session]
        return fed.LeaveReply()

    @streamed
    async def FollowTicket(  # noqa: N802
        self, request: fed.FollowTicketRequest, context: Context
    ) -> AsyncIterator[fed.FollowTicketReply]:
        yield fed.FollowTicketReply()
        if request.ticket_id in self.errors:
            raise self.errors[request.ticket_id]


async def failure(kind: str) -> tuple[list[PufError], str]:
    """The errors that clients of both kinds of call get, and the status code."""
    server = aio.server()
    rpc.add_FederationServicer_to_server(Failing(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    found: list[PufError] = []
    code = ""
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = rpc.FederationStub(channel)
            for call in (stub.Leave(fed.LeaveRequest(session=kind)), _all(stub, kind)):
                try:
                    await call
                except grpc.RpcError as error:
                    found.append(error_from(error))
                    code = error.code().name
    finally:
        await server.stop(None)
    return found, code


async def _all(stub: Any, kind: str) -> None:
    async for _ in stub.FollowTicket(fed.FollowTicketRequest(ticket_id=kind)):
        pass


@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [
        ("known", "FAILED_PRECONDITION", "later"),
        ("disk", "UNAVAILABLE", "the server cannot read or write its files: No space left on device"),
        ("bug", "INTERNAL", "internal error; the server's log has more"),
    ],
)
def test_errors_become_statuses_and_bugs_tell_nothing(kind: str, code: str, message: str) -> None:
    errors, found = run(lambda: failure(kind))
    assert [error.message for error in errors] == [message] * 2
    assert found == code


def test_a_call_without_an_error_is_answered() -> None:
    assert run(lambda: failure("none")) == ([], "")


def test_a_thread_has_the_log_context_of_its_call(threads: Threads) -> None:
    async def scene() -> dict[str, Any]:
        bind_contextvars(client="anna")
        return await in_thread(threads.state, get_contextvars)

    assert run(scene) == {"client": "anna"}


def test_a_cancelled_call_waits_for_its_thread_however_often_it_is_cancelled(threads: Threads) -> None:
    may_end, ended = threading.Event(), threading.Event()

    def work() -> None:
        assert may_end.wait(20)
        ended.set()

    async def scene() -> bool:
        call = asyncio.ensure_future(in_thread(threads.files, work))
        for _ in range(3):
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.sleep(0)
            assert not call.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        return ended.is_set()

    assert run(scene)


def test_work_that_waits_for_a_thread_is_done_although_its_call_is_cancelled(threads: Threads) -> None:
    """A file must be deleted, a quota released, also when all threads are busy at that moment."""
    may_end = threading.Event()
    done: list[int] = []

    async def scene() -> None:
        for _ in range(32):
            start(threads.files, may_end.wait, 20)
        call = asyncio.ensure_future(in_thread(threads.files, done.append, 1))
        for _ in range(2):
            await asyncio.sleep(0)
            call.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await call

    run(scene)
    assert done == [1]


def test_the_result_of_work_is_there_after_its_caller_was_cancelled(threads: Threads) -> None:
    may_end = threading.Event()

    def work() -> str:
        assert may_end.wait(20)
        return "an open file"

    async def scene() -> str:
        job = start(threads.files, work)
        call = asyncio.ensure_future(to_its_end(job))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        return job.result()

    assert run(scene) == "an open file"


def test_an_error_of_a_thread_reaches_its_caller(threads: Threads) -> None:
    def work() -> None:
        raise NotNow("later")

    async def scene() -> None:
        with pytest.raises(NotNow):
            await in_thread(threads.state, work)

    run(scene)


def test_callers_that_wait_for_the_state_hold_up_no_transfer(threads: Threads) -> None:
    lock = threading.Lock()

    def wait_for_lock() -> None:
        with lock:
            pass

    async def scene() -> str:
        waiting = [start(threads.state, wait_for_lock) for _ in range(100)]
        try:
            return await in_thread(threads.files, lambda: "written")
        finally:
            lock.release()
            await asyncio.gather(*waiting)

    lock.acquire()
    assert run(scene) == "written"
