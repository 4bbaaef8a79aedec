"""puf.v1.Federation over grpc.aio: identifies the caller, moves blocking work to threads, carries tensors.

`requests` holds the meaning of each call. Every method goes through `answered` or `streamed`, so that no call can leak a
traceback.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, nullcontext, suppress
from operator import attrgetter
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from structlog.contextvars import bind_contextvars

from puf_common.errors import CutShort, InvalidUpdate, PufError, StorageCorrupted
from puf_common.logging import get_logger
from puf_common.tensors.chunk_frames import chunk_of
from puf_common.tensors.chunks import ChunkView
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import federation_pb2_grpc as rpc
from puf_common.v1 import tensors_pb2 as ts
from puf_common.v1 import tickets_pb2 as tk
from puf_server.admission.identity import Identify
from puf_server.ingest.flow_control import TransferPermit, UploadFrames, UploadLimiter
from puf_server.ingest.header import UploadHeader, UploadKey
from puf_server.ingest.refusals import Refusals
from puf_server.ingest.upload import Upload
from puf_server.rpc import messages
from puf_server.rpc.call_spans import CallSpans
from puf_server.rpc.calls import Context, Threads, answered, start, streamed, to_its_end
from puf_server.rpc.downloads import Downloads
from puf_server.rpc.model_stream import ModelStreams
from puf_server.rpc.notifier import Notifier
from puf_server.rpc.requests import Handlers

_LONGEST_WAIT = 55.0
# Time for the server to keep or delete a broken upload: a write to disk at most.
_ENDING_SECONDS = 10.0

log = get_logger(__name__)


def _message(frame: bytes) -> fed.SubmitUpdateRequest:
    try:
        return fed.SubmitUpdateRequest.FromString(frame)
    except DecodeError:
        raise InvalidUpdate("a message of the update is no SubmitUpdateRequest") from None


def _chunk(frame: bytes) -> ChunkView | ts.Chunk:
    """The chunk of a frame, without a copy where the frame has the usual layout."""
    piece = chunk_of(frame)
    if piece is not None:
        return piece
    message = _message(frame)
    if message.WhichOneof("frame") != "chunk":
        raise InvalidUpdate("after its header an update has nothing but chunks")
    return message.chunk


def _simple(handler: str, traced: str = "") -> Callable[..., Any]:
    """A call that this attribute of `Handlers` answers, in a thread of the state pool.

    `traced` names the span of a call about a ticket.
    """
    handle = attrgetter(handler)

    async def call(self: FederationService, request: Any, context: Context) -> Any:
        name = self._caller(context)
        with self._spans.ticket(traced, request.ticket_id, name, context) if traced else nullcontext():
            return await self._threads.run(self._engine.newest, lambda: handle(self._handlers)(name, request))

    call.__name__ = handler
    return answered(call)


class FederationService(rpc.FederationServicer):
    """`refused` is called with the reason of every update that is not accepted."""

    def __init__(
        self,
        handlers: Handlers,
        identify: Identify,
        notifier: Notifier,
        threads: Threads,
        refused: Callable[[str], None],
    ) -> None:
        self._handlers = handlers
        self._engine = handlers.engine
        self._uploads = handlers.uploads
        self._identify = identify
        self._notifier = notifier
        self._threads = threads
        self._refused = refused
        self._refusals = Refusals(handlers.engine.troubles, handlers.is_member)
        self._limiter = UploadLimiter(handlers.config.limits)
        self._sending = asyncio.Semaphore(handlers.config.limits.downloads)
        # The call that carries each upload.
        self._carriers: dict[UploadKey, asyncio.Task[Any]] = {}
        self._spans = CallSpans(handlers.engine)
        self._downloads = Downloads(handlers.engine, self._threads.run_on_files)
        self._models = ModelStreams(self._threads.run_on_files)

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
        """The caller's name. Every log line of this call carries it, the round and the client's open ticket, if any."""
        name = self._identify(context)
        state = self._engine.state
        ids: dict[str, object] = {"client": name, "round": state.round.number if state.round else state.number}
        ticket = next((t.id for t in state.tickets.values() if t.open and t.client == name), "")
        bind_contextvars(**(ids | {"ticket": ticket} if ticket else ids))
        return name

    async def _refresh(self) -> None:
        """Adopts what another server has just changed."""
        if self._engine.shared:
            await self._threads.run(self._engine.refresh)

    @answered
    async def Describe(self, request: fed.DescribeRequest, context: Context) -> fed.DescribeReply:
        self._caller(context)
        return self._handlers.describe(request)

    LeaseShard = _simple("lease_shard")
    Join = _simple("join")
    Heartbeat = _simple("heartbeat")
    DeclineWork = _simple("decline")
    Leave = _simple("leave")
    ReportEvaluation = _simple("report_evaluation")
    FileUnlearning = _simple("tickets.file_unlearning")
    ReportMeasurement = _simple("tickets.report_measurement", "server.measurement")
    WithdrawUnlearning = _simple("tickets.withdraw")
    GetReceipt = _simple("tickets.get_receipt", "server.receipt")
    PresentReceipt = _simple("tickets.present_receipt")

    @answered
    async def WaitForWork(self, request: fed.WaitForWorkRequest, context: Context) -> fed.WaitForWorkReply:
        name = self._caller(context)
        seconds = min(_LONGEST_WAIT, request.timeout_seconds)
        # Another server may have taken the update that this worker sent last.
        await self._refresh()
        await self._notifier.until(lambda: self._handlers.work(name, request.session) is not None, seconds)
        return self._handlers.work(name, request.session) or fed.WaitForWorkReply(position=self._handlers.position())

    @streamed
    async def FetchModel(self, request: fed.FetchModelRequest, context: Context) -> AsyncIterator[bytes]:
        name = self._caller(context)
        # Another server may have deleted the model.
        await self._refresh()
        model = self._handlers.model_for(name, request.version)
        content, begin, difference = await self._downloads.choose(model, request)
        header = self._handlers.model_header(model)
        header.MergeFrom(fed.ModelHeader(difference=difference, begins_at=begin))
        yield fed.FetchModelReply(header=header).SerializeToString()
        begun, permit = time.monotonic(), TransferPermit(self._sending)
        try:
            with self._spans.transfer("server.download", name, context) as note:
                note(bytes=content.nbytes - begin, **{"model.digest": model.digest})
                async with aclosing(self._models.frames(content, begin)) as frames:
                    async for frame in frames:
                        await permit.acquire()
                        with permit.pausing():
                            yield frame
        except StorageCorrupted:
            # It may have been deleted since it was chosen, also by another server: this states it.
            await self._refresh()
            self._handlers.model_for(name, request.version)
            raise
        finally:
            permit.release()
        self._handlers.rates.record(name, time.monotonic() - begun, down=content.nbytes - begin)
        await self._threads.run(self._handlers.count_sent, content.nbytes - begin)

    @answered
    async def SubmitUpdate(self, request_iterator: AsyncIterator[bytes], context: Context) -> fed.SubmitUpdateReply:
        name = self._caller(context)
        try:
            # Uploads beyond the limit wait here under flow control; they are not refused.
            with self._spans.transfer("server.upload", name, context):
                async with self._limiter.admit(name, request_iterator) as frames:
                    reply = await self._receive(name, frames, context)
        except PufError as error:
            self._refused(error.reason)
            log.warning("update refused", reason=error.reason, why=error.message)
            if self._refusals.refused(name, error):
                await self._threads.run(self._handlers.stop_waiting_for, name, error.message)
            raise
        self._refusals.accepted(name)
        return reply

    def end(self) -> None:
        """Ends work that no call waits for."""
        self._downloads.end()

    def members_changed(self) -> None:
        """Drops what is known about clients that are no longer members. Call it on the event loop."""
        self._refusals.drop_former_members()

    async def _receive(self, name: str, frames: UploadFrames, context: Context) -> fed.SubmitUpdateReply:
        first = _message(await anext(frames, b""))
        if first.WhichOneof("frame") != "header":
            raise InvalidUpdate("an update begins with its header")
        header = messages.update_header(first.header)
        key, task = header.upload_key(name), asyncio.current_task()
        assert task is not None

        self._carriers[key] = task
        # Begun as a future of its own: a call that is cancelled meanwhile must still end the upload.
        beginning = start(self._threads.files, self._engine.newest, lambda: self._uploads.begin(name, header))
        try:
            upload = await to_its_end(beginning)
            if upload is None:
                return self._acknowledged(name, header, duplicate=True)
            begun = time.monotonic()
            await self._write(upload, frames)
            seconds = time.monotonic() - begun
            duplicate = await to_its_end(self._finish(upload))
        except BaseException as error:
            if beginning.exception() is None and (begun_upload := beginning.result()) is not None:
                # A broken connection shows as a cancelled call or as a stream that ends early. Nothing is kept of a
                # client that may no longer call.
                broken = isinstance(error, (asyncio.CancelledError, CutShort)) and self._admitted(context)
                await self._threads.run_on_files(self._uploads.keep if broken else Upload.discard, begun_upload)
            raise
        finally:
            if self._carriers.get(key) is task:
                del self._carriers[key]
        self._handlers.rates.record(name, seconds, up=header.byte_length)
        return self._acknowledged(name, header, duplicate=duplicate)

    def _acknowledged(self, name: str, header: UploadHeader, *, duplicate: bool) -> fed.SubmitUpdateReply:
        log.info("update received", client=name, round=header.number, part=header.part.value, duplicate=duplicate)
        return fed.SubmitUpdateReply(position=self._handlers.position(), duplicate=duplicate)

    async def _write(self, upload: Upload, frames: UploadFrames) -> None:
        """Checks and writes each chunk while the next one arrives."""
        loop = asyncio.get_running_loop()
        writing: asyncio.Future[None] | None = None
        try:
            async for frame in frames:
                if writing is not None:
                    await asyncio.shield(writing)
                chunk = _chunk(frame)
                self._handlers.rates.count(received=len(chunk.data))
                writing = loop.run_in_executor(self._threads.files, upload.write, chunk)
            if writing is not None:
                await asyncio.shield(writing)
        finally:
            # The upload may be kept or deleted only when no thread writes to it.
            if writing is not None:
                with suppress(Exception):
                    await to_its_end(writing)

    async def _finish(self, upload: Upload) -> bool:
        await self._threads.run_on_files(upload.publish)
        return await self._threads.run(upload.book)

    def _admitted(self, context: Context) -> bool:
        """Whether the caller may still call. Calls of revoked clients are cancelled, too."""
        try:
            self._identify(context)
        except PufError:
            return False
        return True

    @answered
    async def FindUpload(self, request: fed.FindUploadRequest, context: Context) -> fed.FindUploadReply:
        name = self._caller(context)
        header = messages.update_header(request.header)
        # The client asks because its stream broke. This server may not have noticed that yet.
        carrier = self._carriers.get(header.upload_key(name))
        if carrier is not None:
            carrier.cancel()
            await asyncio.wait([carrier], timeout=_ENDING_SECONDS)
        return fed.FindUploadReply(offset=await self._threads.run_on_files(self._uploads.offset, name, header))

    @answered
    async def ListMyTickets(self, request: fed.ListMyTicketsRequest, context: Context) -> fed.ListMyTicketsReply:
        name = self._caller(context)
        await self._refresh()
        return self._handlers.tickets.list_my_tickets(name, request.offset)

    @streamed
    async def FollowTicket(
        self, request: fed.FollowTicketRequest, context: Context
    ) -> AsyncIterator[fed.FollowTicketReply]:
        name = self._caller(context)
        await self._refresh()
        seen: object = None

        def view() -> tuple[tk.Ticket, int]:
            return self._handlers.tickets.view(name, request.ticket_id), self._engine.state.number

        def news() -> bool:
            return view() != seen

        while True:
            await self._notifier.until(news, _LONGEST_WAIT)
            record = self._engine.state.tickets.get(request.ticket_id)
            now = view()
            if now != seen:
                seen = now
                yield fed.FollowTicketReply(ticket=now[0], position=self._handlers.position())
            if record is not None and not record.open:
                return
