"""puf.v1.Federation over grpc.aio: finds out who calls, moves blocking work to threads, turns errors into statuses.

What a call means is in `handlers`; every method here goes through one of two wrappers, so that none can forget the
identity or leak a traceback.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar

from grpc import aio

from puf_common.errors import InvalidUpdate, PufError, Unavailable
from puf_common.logging import get_logger
from puf_common.rpc import abort
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import federation_pb2_grpc as rpc
from puf_server.core.state import State
from puf_server.gate import Gate
from puf_server.handlers import Handlers
from puf_server.identity import Identify

__all__ = ["Changes", "FederationService", "answered", "in_thread", "streamed"]

_LONGEST_WAIT = 55.0

Context = aio.ServicerContext[Any, Any]
T = TypeVar("T")
Self = TypeVar("Self")
log = get_logger(__name__)


def answered(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Wraps a call with a single answer: errors become statuses, bugs become INTERNAL and a log line."""

    @wraps(method)
    async def call(self: Any, request: Any, context: Context) -> Any:
        try:
            return await method(self, request, context)
        except PufError as error:
            await abort(context, error)
        except (asyncio.CancelledError, aio.AbortError):
            raise
        except Exception as error:
            await abort(context, _bug(method.__name__, error))

    return call


def streamed(method: Callable[..., AsyncIterator[Any]]) -> Callable[..., Any]:
    """The same for a call with a stream of answers."""

    @wraps(method)
    async def call(self: Any, request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async for reply in method(self, request, context):
                yield reply
        except PufError as error:
            await abort(context, error)
        except (asyncio.CancelledError, GeneratorExit, aio.AbortError):
            raise
        except Exception as error:
            await abort(context, _bug(method.__name__, error))

    return call


def _bug(where: str, error: Exception) -> PufError:
    if isinstance(error, OSError):
        log.error("disk", call=where, error=str(error))
        return Unavailable(f"the server cannot read or write its files: {error.strerror or error}")
    log.error("internal error", call=where, exc_info=error)
    return PufError("internal error; the server's log has more")


async def in_thread(threads: ThreadPoolExecutor, function: Callable[..., T], *args: object) -> T:
    """Blocking work. A call that ends meanwhile waits for it: nobody may touch a file that a thread still writes."""
    job = asyncio.get_running_loop().run_in_executor(threads, function, *args)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.gather(job, return_exceptions=True)
        raise


class Changes:
    """Wakes everybody who waits for the state to change. `notify` may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Set at the first change from now on; take it before looking at the state."""
        return self._event


async def _before(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event came within the time."""
    try:
        await asyncio.wait_for(event.wait(), max(0.0, seconds))
    except TimeoutError:
        return False
    return True


class FederationService(rpc.FederationServicer):
    def __init__(self, handlers: Handlers, identify: Identify, changes: Changes, threads: ThreadPoolExecutor) -> None:
        self._handlers = handlers
        self._identify = identify
        self._changes = changes
        self._threads = threads
        self._uploads = Gate(handlers.config.limits)

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        return await in_thread(self._threads, function, *args)

    @answered
    async def Describe(self, request: fed.DescribeRequest, context: Context) -> fed.DescribeReply:
        self._identify(context)
        return self._handlers.describe(request)

    @answered
    async def Join(self, request: fed.JoinRequest, context: Context) -> fed.JoinReply:
        name = self._identify(context)
        reply = await self._run(self._handlers.join, name, request)
        log.info("client joined", client=name, membership=reply.membership, samples=request.samples)
        return reply

    @answered
    async def Heartbeat(self, request: fed.HeartbeatRequest, context: Context) -> fed.HeartbeatReply:
        return await self._run(self._handlers.heartbeat, self._identify(context), request)

    @answered
    async def WaitForWork(self, request: fed.WaitForWorkRequest, context: Context) -> fed.WaitForWorkReply:
        name = self._identify(context)
        loop = asyncio.get_running_loop()
        until = loop.time() + min(_LONGEST_WAIT, request.timeout_seconds)
        while True:
            changed = self._changes.next()
            work = self._handlers.work(name, request.session)
            if work is not None:
                return work
            if not await _before(changed, until - loop.time()):
                return fed.WaitForWorkReply(position=self._handlers.position())

    @answered
    async def DeclineWork(self, request: fed.DeclineWorkRequest, context: Context) -> fed.DeclineWorkReply:
        name = self._identify(context)
        reply = await self._run(self._handlers.decline, name, request)
        log.warning("work declined", client=name, round=request.key.round, why=request.reason[:200])
        return reply

    @answered
    async def Leave(self, request: fed.LeaveRequest, context: Context) -> fed.LeaveReply:
        return await self._run(self._handlers.leave, self._identify(context), request)

    @streamed
    async def FetchModel(self, request: fed.FetchModelRequest, context: Context) -> AsyncIterator[fed.FetchModelReply]:
        model = self._handlers.model_for(self._identify(context), request.version)
        yield fed.FetchModelReply(header=self._handlers.model_header(model))
        chunks = self._handlers.model_chunks(model)
        try:
            while (chunk := await self._run(next, chunks, None)) is not None:
                yield fed.FetchModelReply(chunk=chunk)
        finally:
            await self._run(chunks.close)
        await self._run(self._handlers.count_sent, model.nbytes)

    @answered
    async def SubmitUpdate(
        self, request_iterator: AsyncIterator[fed.SubmitUpdateRequest], context: Context
    ) -> fed.SubmitUpdateReply:
        name = self._identify(context)
        # Beyond the cap, uploads wait in here under flow control; they are not refused.
        async with self._uploads.entered(name, request_iterator) as frames:
            first = await frames.first()
            if first is None or first.WhichOneof("frame") != "header":
                raise InvalidUpdate("an update begins with its header")
            upload = await self._run(self._handlers.begin_upload, name, first.header)
            try:
                async for frame in frames:
                    if frame.WhichOneof("frame") != "chunk":
                        raise InvalidUpdate("after its header an update has nothing but chunks")
                    await self._run(upload.write, frame.chunk)
                reply = await self._run(upload.finish)
            finally:
                await self._run(upload.discard)
        key = first.header.key
        log.info(
            "update received", client=name, round=key.round, part=fed.Part.Name(key.part), duplicate=reply.duplicate
        )
        return reply

    @answered
    async def ReportEvaluation(
        self, request: fed.ReportEvaluationRequest, context: Context
    ) -> fed.ReportEvaluationReply:
        return await self._run(self._handlers.report_evaluation, self._identify(context), request)

    @answered
    async def FileUnlearning(self, request: fed.FileUnlearningRequest, context: Context) -> fed.FileUnlearningReply:
        name = self._identify(context)
        reply = await self._run(self._handlers.file_unlearning, name, request)
        log.info("request to be forgotten", client=name, ticket=reply.ticket.id, duplicate=reply.duplicate)
        return reply

    @answered
    async def ListMyTickets(self, request: fed.ListMyTicketsRequest, context: Context) -> fed.ListMyTicketsReply:
        return self._handlers.list_my_tickets(self._identify(context), request.offset)

    @streamed
    async def FollowTicket(
        self, request: fed.FollowTicketRequest, context: Context
    ) -> AsyncIterator[fed.FollowTicketReply]:
        name = self._identify(context)
        seen: object = None
        while True:
            changed = self._changes.next()
            state: State = self._handlers.engine.state
            record = state.tickets.get(request.ticket_id)
            message = self._handlers.ticket(name, request.ticket_id)
            view = (message, state.number)
            if view != seen:
                seen = view
                yield fed.FollowTicketReply(ticket=message, position=self._handlers.position())
            if record is not None and not record.open:
                return
            await _before(changed, _LONGEST_WAIT)

    @answered
    async def ReportMeasurement(
        self, request: fed.ReportMeasurementRequest, context: Context
    ) -> fed.ReportMeasurementReply:
        return await self._run(self._handlers.report_measurement, self._identify(context), request)

    @answered
    async def WithdrawUnlearning(
        self, request: fed.WithdrawUnlearningRequest, context: Context
    ) -> fed.WithdrawUnlearningReply:
        return await self._run(self._handlers.withdraw, self._identify(context), request)

    @answered
    async def GetReceipt(self, request: fed.GetReceiptRequest, context: Context) -> fed.GetReceiptReply:
        return await self._run(self._handlers.get_receipt, self._identify(context), request)

    @answered
    async def PresentReceipt(self, request: fed.PresentReceiptRequest, context: Context) -> fed.PresentReceiptReply:
        name = self._identify(context)
        reply = await self._run(self._handlers.present_receipt, name, request)
        if reply.reopened:
            log.warning("a receipt opened its ticket again: this state is older", client=name, ticket=reply.ticket.id)
        return reply
