"""`GrpcTransport`: the calls of a client over gRPC.

Every call has a deadline. A call is repeated when the server did not answer or asked the client to wait (see `retry`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from puf_client.transport.base import ENDED, HeldModel
from puf_client.transport.download import Download
from puf_client.transport.plausible import check_description, check_join, check_work, printable
from puf_client.transport.retry import Attempts, Connectivity, RetryPolicy
from puf_common.errors import InvalidUpdate, TooMuch, TransferCorrupted, UsageError
from puf_common.logging import get_logger
from puf_common.names import check_name
from puf_common.network.addresses import check_targets, grpc_target
from puf_common.network.status import IDENTITY_KEY, TOKEN_KEY, channel_options, error_from
from puf_common.network.tls import ClientTls
from puf_common.tensors.chunk_frames import chunk_frame, chunk_of
from puf_common.tensors.chunks import CHUNK_BYTES, Payload, chunk_views
from puf_common.tensors.manifest import Manifest
from puf_common.tracing.process import carried
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import federation_pb2_grpc as pb_grpc
from puf_common.v1 import tensors_pb2, tickets_pb2

if TYPE_CHECKING:
    from typing import Self

log = get_logger("puf_client.transport.grpc")

# Deadlines of calls, and of one stream that follows a ticket.
_CALL_SECONDS = 30.0
_FOLLOW_SECONDS = 600.0
_LEAVE_SECONDS = 5.0
_DAMAGED_ATTEMPTS = 3
# A server that asks for smaller chunks gets these.
_LEAST_CHUNK_BYTES = 1024

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Answer = TypeVar("Answer", bound=Message)


class GrpcTransport:
    """Calls a server. With TLS, the certificate or the token is the identity; without TLS, the name is sent as metadata."""

    # Deadline of one model or update transfer.
    transfer_seconds = 3600.0

    def __init__(
        self,
        target: str,
        name: str,
        *,
        tls: ClientTls | None = None,
        token: Callable[[], str] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.target = check_targets(target, "the server's address")
        if tls is not None and "," in target and not tls.server_name:
            raise UsageError("several servers under TLS need --tls-server-name, a name in all their certificates")
        # Tensor bytes, repeated attempts included.
        self.bytes_sent = 0
        self.bytes_received = 0
        self.name = check_name(name)
        self._chunk_bytes = CHUNK_BYTES
        # States the size of a model: the header of a download alone must not decide how much memory is allocated.
        self._manifest: tensors_pb2.Manifest | None = None
        self._tls = tls
        self._token = token
        options, where = channel_options(target), grpc_target(target)
        self._channel = grpc.insecure_channel(where, options=options) if tls is None else tls.channel(where, options)
        self._stub = pb_grpc.FederationStub(self._channel)
        # Tensor frames are encoded and decoded without protobuf objects; `bytes` of bytes returns the same object.
        self._fetch: grpc.UnaryStreamMultiCallable[pb.FetchModelRequest, bytes] = self._channel.unary_stream(
            "/puf.v1.Federation/FetchModel", pb.FetchModelRequest.SerializeToString, bytes
        )
        self._submit: grpc.StreamUnaryMultiCallable[bytes, pb.SubmitUpdateReply] = self._channel.stream_unary(
            "/puf.v1.Federation/SubmitUpdate", bytes, pb.SubmitUpdateReply.FromString
        )
        self._server = Connectivity(target, retry or RetryPolicy(), tls=tls is not None)

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        if self._tls is None:
            return ((IDENTITY_KEY, self.name), *carried())
        return ((TOKEN_KEY, f"Bearer {self._token()}"), *carried()) if self._token else carried()

    def describe(self) -> pb.DescribeReply:
        reply = check_description(self._unary(self._stub.Describe, pb.DescribeRequest()))
        self._manifest = reply.manifest
        return reply

    def lease_shard(self, request: pb.LeaseShardRequest) -> pb.LeaseShardReply:
        return self._unary(self._stub.LeaseShard, request)

    def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        reply = check_join(self._unary(self._stub.Join, request))
        self._chunk_bytes = min(max(reply.chunk_bytes or CHUNK_BYTES, _LEAST_CHUNK_BYTES), CHUNK_BYTES)
        return reply

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        return self._once(self._stub.Heartbeat, request)

    def wait_for_work(self, request: pb.WaitForWorkRequest) -> pb.WaitForWorkReply:
        return check_work(self._unary(self._stub.WaitForWork, request, request.timeout_seconds + _CALL_SECONDS))

    def decline_work(self, request: pb.DeclineWorkRequest) -> pb.DeclineWorkReply:
        return self._unary(self._stub.DeclineWork, request)

    def leave(self, request: pb.LeaveRequest) -> pb.LeaveReply:
        return self._once(self._stub.Leave, request, _LEAVE_SECONDS)

    def fetch_model(self, version: int, held: HeldModel | None = None) -> tuple[pb.ModelHeader, Payload]:
        manifest = Manifest.from_pb(self._manifest or self.describe().manifest)
        download = Download(version, manifest, held)

        def attempt() -> tuple[pb.ModelHeader, Payload]:
            nonlocal download
            try:
                return self._download(download)
            except TransferCorrupted:
                # From the beginning, and the whole model: the difference may be what is wrong.
                download = Download(version, manifest, None)
                raise

        return self._intact(attempt)

    def submit_update(self, header: pb.UpdateHeader, payload: Payload) -> pb.SubmitUpdateReply:
        again = False

        def attempt() -> pb.SubmitUpdateReply:
            nonlocal again
            begin = self._received(header) if again else 0
            again = True
            # Each attempt needs a new iterator: the broken call has read a part of the old one.
            frames = self._frames(header, payload, begin)
            return self._submit(frames, timeout=self.transfer_seconds, metadata=self._metadata)

        return self._intact(attempt)

    def report_evaluation(self, request: pb.ReportEvaluationRequest) -> pb.ReportEvaluationReply:
        return self._unary(self._stub.ReportEvaluation, request)

    def file_unlearning(self, request: pb.FileUnlearningRequest) -> pb.FileUnlearningReply:
        return self._unary(self._stub.FileUnlearning, request)

    def list_my_tickets(self) -> pb.ListMyTicketsReply:
        return self._unary(self._stub.ListMyTickets, pb.ListMyTicketsRequest())

    def report_measurement(self, request: pb.ReportMeasurementRequest) -> pb.ReportMeasurementReply:
        return self._unary(self._stub.ReportMeasurement, request)

    def withdraw_unlearning(self, request: pb.WithdrawUnlearningRequest) -> pb.WithdrawUnlearningReply:
        return self._unary(self._stub.WithdrawUnlearning, request)

    def get_receipt(self, ticket_id: str) -> pb.GetReceiptReply:
        return self._unary(self._stub.GetReceipt, pb.GetReceiptRequest(ticket_id=ticket_id))

    def present_receipt(self, request: pb.PresentReceiptRequest) -> pb.PresentReceiptReply:
        return self._unary(self._stub.PresentReceipt, request)

    def follow_ticket(self, ticket_id: str) -> Iterator[pb.FollowTicketReply]:
        """Yields the ticket now and after every change. Opens a broken stream again and skips an unchanged ticket."""
        request = pb.FollowTicketRequest(ticket_id=ticket_id)
        last: tickets_pb2.Ticket | None = None
        attempts = Attempts(self._server)
        while last is None or last.state not in ENDED:
            stream = self._open(
                lambda: self._stub.FollowTicket(request, timeout=_FOLLOW_SECONDS, metadata=self._metadata)
            )
            try:
                for reply in stream:
                    self._server.up()
                    attempts = Attempts(self._server)
                    if reply.ticket != last:
                        last = reply.ticket
                        yield printable(reply)
                attempts.pause()
            except grpc.RpcError as failure:
                if failure.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or last is None:
                    attempts.failed(failure)
            finally:
                stream.cancel()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Ends the calls of all threads, and the connection."""
        self._server.closing.set()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _unary(
        self, method: grpc.UnaryUnaryMultiCallable[Request, Answer], request: Request, seconds: float = _CALL_SECONDS
    ) -> Answer:
        return printable(self._retried(lambda: method(request, timeout=seconds, metadata=self._metadata)))

    def _once(
        self, method: grpc.UnaryUnaryMultiCallable[Request, Reply], request: Request, seconds: float = _CALL_SECONDS
    ) -> Reply:
        try:
            return self._open(lambda: method(request, timeout=seconds, metadata=self._metadata))
        except grpc.RpcError as failure:
            if self._server.closing.is_set():
                raise self._server.closed() from None
            raise error_from(failure, self.target) from None

    def _open(self, call: Callable[[], Reply]) -> Reply:
        """Runs the call. grpc raises ValueError when another thread has closed the channel."""
        try:
            return call()
        except ValueError:
            if self._server.closing.is_set():
                raise self._server.closed() from None
            raise

    def _download(self, download: Download) -> tuple[pb.ModelHeader, Payload]:
        request = download.request()
        stream = self._fetch(request, timeout=self.transfer_seconds, metadata=self._metadata)
        try:
            first = pb.FetchModelReply.FromString(next(iter(stream), b""))
            if first.WhichOneof("frame") != "header":
                raise TransferCorrupted(f"the server sent model {request.version} without its header")
            download.begin(first.header)
            for frame in stream:
                chunk = chunk_of(frame) or pb.FetchModelReply.FromString(frame).chunk
                download.add(chunk)
                self.bytes_received += len(chunk.data)
            return download.finish()
        except DecodeError:
            raise TransferCorrupted(f"the server sent other data instead of model {request.version}") from None
        except (InvalidUpdate, TooMuch) as error:
            raise TransferCorrupted(
                f"model {request.version} arrived damaged: {error.message}", **error.facts
            ) from None
        finally:
            stream.cancel()  # type: ignore[no-untyped-call]

    def _received(self, header: pb.UpdateHeader) -> int:
        """Bytes of the update that the server stored during an interrupted attempt."""
        request = pb.FindUploadRequest(header=header)
        try:
            return self._stub.FindUpload(request, timeout=_CALL_SECONDS, metadata=self._metadata).offset
        except grpc.RpcError as failure:
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                return 0
            raise

    def _frames(self, header: pb.UpdateHeader, payload: Payload, begin: int = 0) -> Iterator[bytes]:
        request = pb.SubmitUpdateRequest(header=header)
        request.header.resume_at = begin
        yield request.SerializeToString()
        for view in chunk_views(payload, self._chunk_bytes, begin):
            self.bytes_sent += len(view.data)
            yield chunk_frame(view.offset, view.data)

    def _intact(self, attempt: Callable[[], Reply]) -> Reply:
        """Repeats a transfer whose bytes arrived damaged. Damage in every attempt has its cause at the source."""
        for _ in range(_DAMAGED_ATTEMPTS - 1):
            try:
                return self._retried(attempt)
            except TransferCorrupted as error:
                log.warning("a transfer arrived damaged; repeating it", reason=error.message)
                Attempts(self._server).pause()
        return self._retried(attempt)

    def _retried(self, attempt: Callable[[], Reply]) -> Reply:
        attempts = Attempts(self._server)
        while True:
            try:
                reply = self._open(attempt)
            except grpc.RpcError as failure:
                attempts.failed(failure)
            else:
                self._server.up()
                return reply
