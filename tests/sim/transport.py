"""The network between a client's code and the server: calls and streams that are lost, repeated, delayed and cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from puf_client.transport.base import ENDED, HeldModel
from puf_common.errors import NotFound, NotNow, PufError, TransferCorrupted, Unavailable
from puf_common.tensors.chunks import Payload
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

if TYPE_CHECKING:
    from tests.sim.client import Client
    from tests.sim.process import Process
    from tests.sim.server import SimServer

T = TypeVar("T")
_DAMAGED_ATTEMPTS = 3
_CHUNK = 40
_LEAST_WAIT = 30.0


class SimTransport:
    """The client's `Transport`. Like that for gRPC, it repeats a call until the server answers."""

    def __init__(self, client: Client, process: Process) -> None:
        self.name = client.name
        self._client = client
        self._process = process
        self._world = client.world
        # The tickets that the server stated last.
        self._tickets: list[tk.Ticket] = []

    @property
    def _server(self) -> SimServer:
        """The server that takes the call."""
        return self._world.server

    # -- calls ---------------------------------------------------------------------------------------------

    def _once(self, serve: Callable[[], T], at: SimServer | None = None) -> T:
        answer = self._process.wait(lambda done: self._world.call(serve, done, at))
        if isinstance(answer, PufError):
            raise answer
        found: T = answer
        return found

    def _call(self, serve: Callable[[], T]) -> T:
        while True:
            try:
                return self._once(serve)
            except Unavailable:
                self._process.sleep(self._world.rng.uniform(1.0, 8.0))

    def describe(self) -> pb.DescribeReply:
        return self._call(lambda: self._server.handlers.describe(pb.DescribeRequest()))

    def lease_shard(self, request: pb.LeaseShardRequest) -> pb.LeaseShardReply:
        return self._call(lambda: self._server.handlers.lease_shard(self.name, request))

    def join(self, request: pb.JoinRequest) -> pb.JoinReply:
        sent = _copy(request)
        self._world.verify(lambda: self._client.joins(self._tickets))
        return self._call(lambda: self._server.handlers.join(self.name, sent))

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        return self._once(lambda: self._server.handlers.heartbeat(self.name, request))

    def wait_for_work(self, request: pb.WaitForWorkRequest) -> pb.WaitForWorkReply | None:
        woken = self._process.event()

        def ask() -> pb.WaitForWorkReply | None:
            self._server.engine.refresh()
            reply = self._server.handlers.work(self.name, request.session)
            if reply is None:
                self._server.waiters[self._process.name] = woken.set
            return reply

        reply = self._call(ask)
        if reply is None and request.timeout_seconds:
            woken.wait(max(_LEAST_WAIT, request.timeout_seconds))
            reply = self._call(ask)
        return reply

    def decline_work(self, request: pb.DeclineWorkRequest) -> pb.DeclineWorkReply:
        return self._call(lambda: self._server.handlers.decline(self.name, request))

    def leave(self, request: pb.LeaveRequest) -> pb.LeaveReply:
        return self._once(lambda: self._server.handlers.leave(self.name, request))

    def report_evaluation(self, request: pb.ReportEvaluationRequest) -> pb.ReportEvaluationReply:
        return self._call(lambda: self._server.handlers.report_evaluation(self.name, request))

    def list_my_tickets(self) -> pb.ListMyTicketsReply:
        reply = self._call(self._my_tickets)
        self._tickets = list(reply.tickets)
        return reply

    def _my_tickets(self) -> pb.ListMyTicketsReply:
        self._server.engine.refresh()
        return self._server.handlers.tickets.list_my_tickets(self.name)

    def report_measurement(self, request: pb.ReportMeasurementRequest) -> pb.ReportMeasurementReply:
        return self._call(lambda: self._server.handlers.tickets.report_measurement(self.name, request))

    def get_receipt(self, ticket_id: str) -> pb.GetReceiptReply:
        return self._call(lambda: pb.GetReceiptReply(receipt=self._server.receipt(self.name, ticket_id)))

    def present_receipt(self, request: pb.PresentReceiptRequest) -> pb.PresentReceiptReply:
        return self._call(lambda: self._server.handlers.tickets.present_receipt(self.name, request))

    def file_unlearning(self, request: pb.FileUnlearningRequest) -> pb.FileUnlearningReply:
        self._world.verify(lambda: self._client.files(request.request))
        reply = self._call(lambda: self._server.handlers.tickets.file_unlearning(self.name, request))
        self._client.following = reply.ticket.id
        return reply

    def withdraw_unlearning(self, request: pb.WithdrawUnlearningRequest) -> pb.WithdrawUnlearningReply:
        checker = self._world.checker

        def withdraw() -> pb.WithdrawUnlearningReply:
            if self._server.view is not None:
                self._server.engine.refresh()
            ticket = self._server.engine.state.tickets.get(request.ticket_id)
            if ticket is not None:
                checker.taken_back(ticket)
            return self._server.handlers.tickets.withdraw(self.name, request)

        try:
            return self._call(withdraw)
        except (NotNow, NotFound):
            checker.not_taken_back(self.name, request.ticket_id)
            raise

    def follow_ticket(self, ticket_id: str) -> Iterator[pb.FollowTicketReply]:
        last = None
        while last is None or last.state not in ENDED:
            ticket = self._call(lambda: self._server.handlers.tickets.view(self.name, ticket_id))
            if ticket != last:
                last = ticket
                yield pb.FollowTicketReply(ticket=ticket)
            self._process.sleep(self._world.rng.uniform(5.0, 30.0))

    def close(self) -> None:
        """Does nothing."""

    # -- streams -------------------------------------------------------------------------------------------

    def fetch_model(self, version: int, held: HeldModel | None = None) -> tuple[pb.ModelHeader, Payload]:
        for attempt in range(_DAMAGED_ATTEMPTS):
            while True:
                header, payload = self._call(lambda: self._server.fetch(self.name, version))
                if not self._world.strikes("cut_stream"):
                    break
                self._process.sleep(2.0)
            if payload is not None:
                return header, payload
            self._process.sleep(1.0 + attempt)
        raise TransferCorrupted(f"model {version} arrived damaged")

    def submit_update(self, header: pb.UpdateHeader, payload: Payload) -> pb.SubmitUpdateReply:
        """Sends an update as gRPC does: a broken stream is continued where the server has got to."""
        data, again, damaged = bytes(payload), False, 0
        self._world.verify(lambda: self._client.sends(header, data))
        while True:
            sent = _copy(header)
            try:
                if again:
                    sent.resume_at = self._once(lambda: self._server.find_upload(self.name, header))
                again = True
                return self._stream(sent, data)
            except Unavailable:
                self._process.sleep(self._world.rng.uniform(1.0, 8.0))
            except TransferCorrupted:
                damaged += 1
                if damaged == _DAMAGED_ATTEMPTS:
                    raise
                self._process.sleep(1.0)

    def _stream(self, header: pb.UpdateHeader, data: bytes) -> pb.SubmitUpdateReply:
        """One stream. Where it is cut, the server notices that sooner or later, and keeps what has arrived."""
        world = self._world
        stream = self._once(lambda: self._server.begin_upload(self.name, header, self._process))
        if isinstance(stream, pb.SubmitUpdateReply):
            return stream
        server = stream.server
        cut = Unavailable("the stream was cut")
        if world.strikes("cancel_begin"):
            world.after(world.delay(), server.stream_broke, stream)
            raise cut
        for at in range(header.resume_at, len(data), _CHUNK):
            if world.strikes("cut_stream"):
                world.after(world.delay() * world.rng.choice([1.0, 100.0]), server.stream_broke, stream)
                raise cut
            # A repeated request would be another stream: no call is lost or repeated within one.
            self._process.sleep(0.01)
            try:
                server.write_chunk(stream, at, data[at : at + _CHUNK])
            except PufError:
                server.stream_refused(stream)
                raise
        return self._once(lambda: server.finish_upload(stream), server)


def _copy(message: T) -> T:
    """The message as it is sent. Its sender may change its own later."""
    copied = type(message)()
    copied.CopyFrom(message)  # type: ignore[attr-defined]
    return copied
