"""puf.v1.Federation over grpc.aio: finds out who calls, moves blocking work to threads, turns errors into statuses.

What a call means is in `handlers`; every method here goes through one of two wrappers, so that none can forget the
identity or leak a traceback.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from functools import wraps
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from structlog.contextvars import bind_contextvars

from puf_common.errors import CutShort, InvalidUpdate, PufError, Unavailable
from puf_common.logging import get_logger
from puf_common.network.status import abort
from puf_common.tensors.chunk_frames import chunk_of
from puf_common.tensors.chunks import ChunkView
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import federation_pb2_grpc as rpc
from puf_common.v1 import tensors_pb2 as ts
from puf_common.v1 import tickets_pb2 as tk
from puf_server.admission.identity import Identify
from puf_server.core.state.state import State
from puf_server.ingest.flow_control import Frames, Gate, Place
from puf_server.ingest.upload import PendingUpload, upload_key
from puf_server.rpc.model_stream import SharedModels
from puf_server.rpc.notifier import Changes
from puf_server.rpc.requests import Handlers

__all__ = ["FederationService", "answered", "in_thread", "streamed"]

_LONGEST_WAIT = 55.0
# How long a broken upload may take to be put aside: a write to disk at most.
_LOST_SECONDS = 10.0

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


def _message(frame: bytes) -> fed.SubmitUpdateRequest:
    try:
        return fed.SubmitUpdateRequest.FromString(frame)
    except DecodeError:
        raise InvalidUpdate("a message of the update is no SubmitUpdateRequest") from None


def _chunk(frame: bytes) -> ChunkView | ts.Chunk:
    """The chunk of a frame, read in place where it is laid out as usual."""
    piece = chunk_of(frame)
    if piece is not None:
        return piece
    message = _message(frame)
    if message.WhichOneof("frame") != "chunk":
        raise InvalidUpdate("after its header an update has nothing but chunks")
    return message.chunk


def _discard(upload: PendingUpload) -> None:
    upload.discard()


class FederationService(rpc.FederationServicer):
    def __init__(
        self,
        handlers: Handlers,
        identify: Identify,
        changes: Changes,
        threads: ThreadPoolExecutor,
        on_refused: Callable[[str], None],
    ) -> None:
        self._handlers = handlers
        self._on_refused = on_refused
        self._identify = identify
        self._changes = changes
        self._threads = threads
        self._uploads = Gate(handlers.config.limits)
        self._downloads = asyncio.Semaphore(handlers.config.limits.downloads)
        self._under_way: dict[tuple[str, bytes, bytes], asyncio.Task[Any]] = {}
        self._models = SharedModels(self._run, handlers.engine.store.model_source)

    def add_to(self, server: aio.Server) -> None:
        """Registers all methods; those that move tensors take and give frames as bytes."""
        rpc.add_FederationServicer_to_server(self, server)
        server.add_registered_method_handlers(  # type: ignore[attr-defined]  # the stubs are older
            "puf.v1.Federation",
            {
                "FetchModel": grpc.unary_stream_rpc_method_handler(
                    self.FetchModel, request_deserializer=fed.FetchModelRequest.FromString
                ),
                "SubmitUpdate": grpc.stream_unary_rpc_method_handler(
                    self.SubmitUpdate, response_serializer=fed.SubmitUpdateReply.SerializeToString
                ),
            },
        )

    def _caller(self, context: Context) -> str:
        """Who calls. Every log line of this call carries the name, the round and, where there is one, the open ticket."""
        name = self._identify(context)
        state = self._handlers.engine.state
        ids: dict[str, object] = {"client": name, "round": state.round.number if state.round else state.number}
        ticket = next((t.id for t in state.tickets.values() if t.open and t.client == name), "")
        bind_contextvars(**(ids | {"ticket": ticket} if ticket else ids))
        return name

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        # Log lines written in the thread belong to the call, too.
        context = copy_context()
        return await in_thread(self._threads, context.run, function, *args)

    @answered
    async def Describe(self, request: fed.DescribeRequest, context: Context) -> fed.DescribeReply:
        self._caller(context)
        return self._handlers.describe(request)

    @answered
    async def LeaseShard(self, request: fed.LeaseShardRequest, context: Context) -> fed.LeaseShardReply:
        return await self._run(self._handlers.lease_shard, self._caller(context), request)

    @answered
    async def Join(self, request: fed.JoinRequest, context: Context) -> fed.JoinReply:
        name = self._caller(context)
        reply = await self._run(self._handlers.join, name, request)
        log.info("client joined", client=name, membership=reply.membership, samples=request.samples)
        return reply

    @answered
    async def Heartbeat(self, request: fed.HeartbeatRequest, context: Context) -> fed.HeartbeatReply:
        return await self._run(self._handlers.heartbeat, self._caller(context), request)

    @answered
    async def WaitForWork(self, request: fed.WaitForWorkRequest, context: Context) -> fed.WaitForWorkReply:
        name = self._caller(context)
        seconds = min(_LONGEST_WAIT, request.timeout_seconds)
        await self._changes.until(lambda: self._handlers.work(name, request.session) is not None, seconds)
        return self._handlers.work(name, request.session) or fed.WaitForWorkReply(position=self._handlers.position())

    @answered
    async def DeclineWork(self, request: fed.DeclineWorkRequest, context: Context) -> fed.DeclineWorkReply:
        name = self._caller(context)
        reply = await self._run(self._handlers.decline, name, request)
        log.warning("work declined", client=name, round=request.key.round, why=request.reason[:200])
        return reply

    @answered
    async def Leave(self, request: fed.LeaveRequest, context: Context) -> fed.LeaveReply:
        return await self._run(self._handlers.leave, self._caller(context), request)

    @streamed
    async def FetchModel(self, request: fed.FetchModelRequest, context: Context) -> AsyncIterator[bytes]:
        name = self._caller(context)
        model = self._handlers.model_for(name, request.version)
        yield fed.FetchModelReply(header=self._handlers.model_header(model)).SerializeToString()
        begun, place = time.monotonic(), Place(self._downloads)
        try:
            async with aclosing(self._models.frames(model)) as frames:
                async for frame in frames:
                    await place.take()
                    with place.pausing():
                        yield frame
        finally:
            place.leave()
        self._handlers.rates.went_down(name, model.nbytes, time.monotonic() - begun)
        await self._run(self._handlers.count_sent, model.nbytes)

    @answered
    async def SubmitUpdate(self, request_iterator: AsyncIterator[bytes], context: Context) -> fed.SubmitUpdateReply:
        name = self._caller(context)
        try:
            return await self._take(name, request_iterator, context)
        except PufError as error:
            self._on_refused(error.reason)
            log.warning("update refused", reason=error.reason, why=error.message)
            raise

    async def _take(self, name: str, request_iterator: AsyncIterator[bytes], context: Context) -> fed.SubmitUpdateReply:
        # Beyond the cap, uploads wait in here under flow control; they are not refused.
        async with self._uploads.entered(name, request_iterator) as frames:
            first = _message(await frames.first() or b"")
            if first.WhichOneof("frame") != "header":
                raise InvalidUpdate("an update begins with its header")
            upload = await self._run(self._handlers.begin_upload, name, first.header)
            task = asyncio.current_task()
            assert task is not None
            self._under_way[upload.key] = task
            try:
                begun = time.monotonic()
                await self._write(upload, frames)
                seconds = time.monotonic() - begun
                reply = await self._run(upload.finish)
            except BaseException as error:
                # A line that breaks is seen as a cancelled call or as a stream that ends early, whichever comes first.
                keep = isinstance(error, (asyncio.CancelledError, CutShort)) and self._still_let_in(context)
                await self._run(self._handlers.park if keep else _discard, upload)
                raise
            finally:
                if self._under_way.get(upload.key) is task:
                    del self._under_way[upload.key]
        self._handlers.rates.came_up(name, first.header.byte_length, seconds)
        key = first.header.key
        log.info(
            "update received", client=name, round=key.round, part=fed.Part.Name(key.part), duplicate=reply.duplicate
        )
        return reply

    async def _write(self, upload: PendingUpload, frames: Frames) -> None:
        """Each chunk is checked and written while the next one arrives."""
        loop = asyncio.get_running_loop()
        writing: asyncio.Future[None] | None = None
        try:
            async for frame in frames:
                if writing is not None:
                    await asyncio.shield(writing)
                writing = loop.run_in_executor(self._threads, upload.write, _chunk(frame))
            if writing is not None:
                await asyncio.shield(writing)
        finally:
            # Nobody may touch a file that a thread still writes.
            if writing is not None:
                await asyncio.gather(writing, return_exceptions=True)

    def _still_let_in(self, context: Context) -> bool:
        """Whether the caller may come back: calls of those who were revoked are cancelled, too, and nothing is kept."""
        try:
            self._identify(context)
        except PufError:
            return False
        return True

    @answered
    async def FindUpload(self, request: fed.FindUploadRequest, context: Context) -> fed.FindUploadReply:
        name = self._caller(context)
        # Who asks has lost the stream that brought it; this side may not have noticed yet.
        lost = self._under_way.get(upload_key(name, request.header))
        if lost is not None:
            lost.cancel()
            await asyncio.wait([lost], timeout=_LOST_SECONDS)
        return await self._run(self._handlers.find_upload, name, request)

    @answered
    async def ReportEvaluation(
        self, request: fed.ReportEvaluationRequest, context: Context
    ) -> fed.ReportEvaluationReply:
        return await self._run(self._handlers.report_evaluation, self._caller(context), request)

    @answered
    async def FileUnlearning(self, request: fed.FileUnlearningRequest, context: Context) -> fed.FileUnlearningReply:
        name = self._caller(context)
        reply = await self._run(self._handlers.file_unlearning, name, request)
        log.info("request to be forgotten", client=name, ticket=reply.ticket.id, duplicate=reply.duplicate)
        return reply

    @answered
    async def ListMyTickets(self, request: fed.ListMyTicketsRequest, context: Context) -> fed.ListMyTicketsReply:
        return self._handlers.list_my_tickets(self._caller(context), request.offset)

    @streamed
    async def FollowTicket(
        self, request: fed.FollowTicketRequest, context: Context
    ) -> AsyncIterator[fed.FollowTicketReply]:
        name = self._caller(context)
        seen: object = None

        def view() -> tuple[tk.Ticket, int]:
            return self._handlers.ticket(name, request.ticket_id), self._handlers.engine.state.number

        def news() -> bool:
            return view() != seen

        while True:
            await self._changes.until(news, _LONGEST_WAIT)
            state: State = self._handlers.engine.state
            record = state.tickets.get(request.ticket_id)
            now = view()
            if now != seen:
                seen = now
                yield fed.FollowTicketReply(ticket=now[0], position=self._handlers.position())
            if record is not None and not record.open:
                return

    @answered
    async def ReportMeasurement(
        self, request: fed.ReportMeasurementRequest, context: Context
    ) -> fed.ReportMeasurementReply:
        return await self._run(self._handlers.report_measurement, self._caller(context), request)

    @answered
    async def WithdrawUnlearning(
        self, request: fed.WithdrawUnlearningRequest, context: Context
    ) -> fed.WithdrawUnlearningReply:
        return await self._run(self._handlers.withdraw, self._caller(context), request)

    @answered
    async def GetReceipt(self, request: fed.GetReceiptRequest, context: Context) -> fed.GetReceiptReply:
        return await self._run(self._handlers.get_receipt, self._caller(context), request)

    @answered
    async def PresentReceipt(self, request: fed.PresentReceiptRequest, context: Context) -> fed.PresentReceiptReply:
        name = self._caller(context)
        reply = await self._run(self._handlers.present_receipt, name, request)
        if reply.reopened:
            log.warning("a receipt opened its ticket again: this state is older", client=name, ticket=reply.ticket.id)
        return reply
