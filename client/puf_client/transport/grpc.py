"""How a client reaches its federation: one method per call, and the implementation that dials a server.

Whatever stands behind `Transport`, methods return the server's answer or raise a `PufError`. The gRPC implementation
gives every call a deadline, and tries again when nobody answered or the server asked for it (`patience`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import grpc
from google.protobuf.message import DecodeError

from puf_client.transport.retry import Attempts, Line
from puf_common.errors import InvalidUpdate, TooMuch, TransferCorrupted
from puf_common.logging import get_logger
from puf_common.names import check_name
from puf_common.network.addresses import check_target
from puf_common.network.status import IDENTITY_KEY, TOKEN_KEY, channel_options, error_from
from puf_common.network.tls import ClientTls
from puf_common.tensors.chunk_frames import chunk_frame, chunk_of
from puf_common.tensors.chunks import CHUNK_BYTES, Assembler, Payload, chunk_views
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import federation_pb2_grpc as pb_grpc
from puf_common.v1 import tensors_pb2, tickets_pb2

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["ENDED", "GrpcTransport", "Transport"]

log = get_logger("puf_client.transport.grpc")

_DAMAGED_ATTEMPTS = 3

Request = TypeVar("Request")
Reply = TypeVar("Reply")

# States that a ticket never leaves.
ENDED = frozenset(
    {
        tickets_pb2.TICKET_STATE_COMPLETED,
        tickets_pb2.TICKET_STATE_FAILED,
        tickets_pb2.TICKET_STATE_WITHDRAWN,
    }
)


_SIZES = {
    tensors_pb2.DTYPE_F16: 2, tensors_pb2.DTYPE_F32: 4, tensors_pb2.DTYPE_F64: 8, tensors_pb2.DTYPE_I8: 1,
    tensors_pb2.DTYPE_I16: 2, tensors_pb2.DTYPE_I32: 4, tensors_pb2.DTYPE_I64: 8, tensors_pb2.DTYPE_U8: 1,
    tensors_pb2.DTYPE_BOOL: 1,
}  # fmt: skip


@runtime_checkable
class Transport(Protocol):
    """The calls of `puf.v1.Federation` under one identity: over a network, or to a server in this process."""

    @property
    def name(self) -> str:
        """The client's identity."""
        ...

    def describe(self) -> pb.DescribeReply: ...

    def lease_shard(self, request: pb.LeaseShardRequest) -> pb.LeaseShardReply: ...

    def join(self, request: pb.JoinRequest) -> pb.JoinReply: ...

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        """One attempt only: the next beat is the next attempt. Called from a thread of its own."""
        ...

    def wait_for_work(self, request: pb.WaitForWorkRequest) -> pb.WaitForWorkReply | None:
        """May answer empty-handed, also at once."""
        ...

    def decline_work(self, request: pb.DeclineWorkRequest) -> pb.DeclineWorkReply: ...

    def leave(self, request: pb.LeaveRequest) -> pb.LeaveReply:
        """One attempt only: whoever leaves does not wait for a server that is gone."""
        ...

    def fetch_model(self, version: int) -> tuple[pb.ModelHeader, Payload]:
        """Header and verified bytes; the bytes belong to the caller."""
        ...

    def submit_update(self, header: pb.UpdateHeader, payload: Payload) -> pb.SubmitUpdateReply: ...

    def report_evaluation(self, request: pb.ReportEvaluationRequest) -> pb.ReportEvaluationReply: ...

    def file_unlearning(self, request: pb.FileUnlearningRequest) -> pb.FileUnlearningReply: ...

    def list_my_tickets(self) -> pb.ListMyTicketsReply: ...

    def follow_ticket(self, ticket_id: str) -> Iterator[pb.FollowTicketReply]:
        """The ticket now and after every change, ending with the ticket."""
        ...

    def report_measurement(self, request: pb.ReportMeasurementRequest) -> pb.ReportMeasurementReply: ...

    def withdraw_unlearning(self, request: pb.WithdrawUnlearningRequest) -> pb.WithdrawUnlearningReply: ...

    def get_receipt(self, ticket_id: str) -> pb.GetReceiptReply: ...

    def present_receipt(self, request: pb.PresentReceiptRequest) -> pb.PresentReceiptReply: ...

    def close(self) -> None: ...


def _nbytes(tensor: tensors_pb2.TensorSpec) -> int:
    return prod(tensor.shape) * _SIZES.get(tensor.dtype, 0)


class GrpcTransport:
    """Dials a server. With `tls` the certificate or the token is the identity; without, the name travels as metadata."""

    def __init__(
        self,
        target: str,
        name: str,
        *,
        tls: ClientTls | None = None,
        token: Callable[[], str] | None = None,
        patience: float = 30.0,
        call_seconds: float = 30.0,
        transfer_seconds: float = 3600.0,
        follow_seconds: float = 600.0,
        first_pause: float = 0.2,
        longest_pause: float = 10.0,
    ) -> None:
        self.target = check_target(target, "the server's address")
        # Tensor bytes, repeated attempts included.
        self.bytes_sent = 0
        self.bytes_received = 0
        self._name = check_name(name)
        self._call_seconds = call_seconds
        self._transfer_seconds = transfer_seconds
        self._follow_seconds = follow_seconds
        self._chunk_bytes = CHUNK_BYTES
        # What the manifest says that a model has; the memory for one is not taken on a header's word alone.
        self._model_bytes: int | None = None
        self._tls = tls
        self._token = token
        options = channel_options(target)
        self._channel = grpc.insecure_channel(target, options=options) if tls is None else tls.channel(target, options)
        self._stub = pb_grpc.FederationStub(self._channel)
        # Tensors travel as frames of bytes, made and read by hand; `bytes` of bytes is the object itself.
        self._fetch: grpc.UnaryStreamMultiCallable[pb.FetchModelRequest, bytes] = self._channel.unary_stream(
            "/puf.v1.Federation/FetchModel", pb.FetchModelRequest.SerializeToString, bytes
        )
        self._submit: grpc.StreamUnaryMultiCallable[bytes, pb.SubmitUpdateReply] = self._channel.stream_unary(
            "/puf.v1.Federation/SubmitUpdate", bytes, pb.SubmitUpdateReply.FromString
        )
        self._line = Line(target, patience, first_pause, longest_pause, tls=tls is not None)

    @property
    def name(self) -> str:
        return self._name

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        if self._tls is None:
            return ((IDENTITY_KEY, self._name),)
        return ((TOKEN_KEY, f"Bearer {self._token()}"),) if self._token else ()

    def describe(self) -> pb.DescribeReply:
        reply = self._unary(self._stub.Describe, pb.DescribeRequest())
        self._model_bytes = sum(_nbytes(tensor) for tensor in reply.manifest.tensors)
        return reply

    def lease_shard(self, request: pb.LeaseShardRequest) -> pb.LeaseShardReply:
        return self._unary(self._stub.LeaseShard, request)

    def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        reply = self._unary(self._stub.Join, request)
        self._chunk_bytes = min(reply.chunk_bytes or CHUNK_BYTES, CHUNK_BYTES)
        return reply

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        return self._once(self._stub.Heartbeat, request)

    def wait_for_work(self, request: pb.WaitForWorkRequest) -> pb.WaitForWorkReply:
        return self._unary(self._stub.WaitForWork, request, request.timeout_seconds + self._call_seconds)

    def decline_work(self, request: pb.DeclineWorkRequest) -> pb.DeclineWorkReply:
        return self._unary(self._stub.DeclineWork, request)

    def leave(self, request: pb.LeaveRequest) -> pb.LeaveReply:
        return self._once(self._stub.Leave, request, seconds=5.0)

    def fetch_model(self, version: int) -> tuple[pb.ModelHeader, Payload]:
        return self._intact(lambda: self._download(pb.FetchModelRequest(version=version)))

    def submit_update(self, header: pb.UpdateHeader, payload: Payload) -> pb.SubmitUpdateReply:
        again = False

        def attempt() -> pb.SubmitUpdateReply:
            nonlocal again
            begin = self._held(header) if again else 0
            again = True
            # A fresh iterator each time: one that a broken call has half read would silently send the rest only.
            frames = self._frames(header, payload, begin)
            return self._submit(frames, timeout=self._transfer_seconds, metadata=self._metadata)

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
        """A stream that breaks is opened again; a ticket that did not change meanwhile is not repeated."""
        request = pb.FollowTicketRequest(ticket_id=ticket_id)
        last: tickets_pb2.Ticket | None = None
        attempts = Attempts(self._line)
        while last is None or last.state not in ENDED:
            stream = self._open(
                lambda: self._stub.FollowTicket(request, timeout=self._follow_seconds, metadata=self._metadata)
            )
            try:
                for reply in stream:
                    self._line.up()
                    attempts = Attempts(self._line)
                    if reply.ticket != last:
                        last = reply.ticket
                        yield reply
                attempts.pause()
            except grpc.RpcError as failure:
                if failure.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or last is None:
                    attempts.failed(failure)
            finally:
                stream.cancel()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Ends calls under way, in any thread, and the connection."""
        self._line.closing.set()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _unary(
        self, method: grpc.UnaryUnaryMultiCallable[Request, Reply], request: Request, seconds: float | None = None
    ) -> Reply:
        timeout = self._call_seconds if seconds is None else seconds
        return self._patiently(lambda: method(request, timeout=timeout, metadata=self._metadata))

    def _once(
        self, method: grpc.UnaryUnaryMultiCallable[Request, Reply], request: Request, seconds: float | None = None
    ) -> Reply:
        timeout = self._call_seconds if seconds is None else seconds
        try:
            return self._open(lambda: method(request, timeout=timeout, metadata=self._metadata))
        except grpc.RpcError as failure:
            if self._line.closing.is_set():
                raise self._line.closed() from None
            raise error_from(failure, self.target) from None

    def _open(self, call: Callable[[], Reply]) -> Reply:
        """A channel that another thread has closed refuses calls with a ValueError."""
        try:
            return call()
        except ValueError:
            if self._line.closing.is_set():
                raise self._line.closed() from None
            raise

    def _download(self, request: pb.FetchModelRequest) -> tuple[pb.ModelHeader, Payload]:
        stream = self._fetch(request, timeout=self._transfer_seconds, metadata=self._metadata)
        try:
            first = pb.FetchModelReply.FromString(next(iter(stream), b""))
            if first.WhichOneof("frame") != "header":
                raise TransferCorrupted(f"the server sent model {request.version} without its header")
            if first.header.byte_length != self._expected_bytes():
                raise TransferCorrupted(
                    f"the server states {first.header.byte_length} bytes for model {request.version}, "
                    f"its manifest {self._expected_bytes()}"
                )
            stated = first.header
            assembler = (
                Assembler(stated.byte_length, stated.blake3, "blake3")
                if stated.blake3
                else Assembler(stated.byte_length, stated.digest)
            )
            for frame in stream:
                chunk = chunk_of(frame) or pb.FetchModelReply.FromString(frame).chunk
                assembler.add(chunk)
                self.bytes_received += len(chunk.data)
            return first.header, assembler.finish()
        except DecodeError:
            raise TransferCorrupted(f"the server sent something else than model {request.version}") from None
        except (InvalidUpdate, TooMuch) as error:
            raise TransferCorrupted(
                f"model {request.version} arrived damaged: {error.message}", **error.facts
            ) from None
        finally:
            stream.cancel()  # type: ignore[no-untyped-call]

    def _expected_bytes(self) -> int:
        if self._model_bytes is None:
            self.describe()
        assert self._model_bytes is not None
        return self._model_bytes

    def _held(self, header: pb.UpdateHeader) -> int:
        """How much of an update the server has kept of an attempt that broke."""
        request = pb.FindUploadRequest(header=header)
        try:
            return self._stub.FindUpload(request, timeout=self._call_seconds, metadata=self._metadata).offset
        except grpc.RpcError as failure:
            if failure.code() is grpc.StatusCode.UNIMPLEMENTED:
                return 0
            raise

    def _frames(self, header: pb.UpdateHeader, payload: Payload, begin: int = 0) -> Iterator[bytes]:
        started = pb.UpdateHeader()
        started.CopyFrom(header)
        started.resume_at = begin
        yield pb.SubmitUpdateRequest(header=started).SerializeToString()
        for piece in chunk_views(payload, self._chunk_bytes, begin):
            self.bytes_sent += len(piece.data)
            yield chunk_frame(piece.offset, piece.data)

    def _intact(self, attempt: Callable[[], Reply]) -> Reply:
        """A stream that arrived damaged is sent again, whole. What is damaged every time is damaged where it lies."""
        for left in reversed(range(_DAMAGED_ATTEMPTS)):
            try:
                return self._patiently(attempt)
            except TransferCorrupted as error:
                if not left:
                    raise
                log.warning("arrived damaged; trying again", reason=error.message)
                Attempts(self._line).pause()
        raise AssertionError

    def _patiently(self, attempt: Callable[[], Reply]) -> Reply:
        attempts = Attempts(self._line)
        while True:
            try:
                reply = self._open(attempt)
            except grpc.RpcError as failure:
                attempts.failed(failure)
            else:
                self._line.up()
                return reply
