"""The calls that a client makes: one method per call of `puf.v1.Federation`.

Every method returns the server's answer or raises a `PufError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from puf_common.tensors.chunks import Payload
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

# States that a ticket never leaves.
ENDED = frozenset({tk.TICKET_STATE_COMPLETED, tk.TICKET_STATE_FAILED, tk.TICKET_STATE_WITHDRAWN})


class HeldModel(NamedTuple):
    """A model that the client has, with the digest that the server stated for it."""

    version: int
    digest: bytes
    payload: Payload


class Transport(Protocol):
    """The calls under one client identity: over a network, or to a server in this process."""

    @property
    def name(self) -> str:
        """The client's name."""

    def describe(self) -> pb.DescribeReply: ...
    def lease_shard(self, request: pb.LeaseShardRequest) -> pb.LeaseShardReply: ...
    def join(self, request: pb.JoinRequest) -> pb.JoinReply: ...

    def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        """Makes one attempt, because the next heartbeat is the next attempt. Called from the heartbeat thread."""

    def wait_for_work(self, request: pb.WaitForWorkRequest) -> pb.WaitForWorkReply | None:
        """Returns work, or None or a reply without work, possibly before the timeout."""

    def decline_work(self, request: pb.DeclineWorkRequest) -> pb.DeclineWorkReply: ...

    def leave(self, request: pb.LeaveRequest) -> pb.LeaveReply:
        """Makes one attempt: a client that leaves does not wait for an absent server."""

    def fetch_model(self, version: int, held: HeldModel | None = None) -> tuple[pb.ModelHeader, Payload]:
        """Returns the header and the verified bytes. The caller owns the bytes. The difference to `held` may be sent."""

    def submit_update(self, header: pb.UpdateHeader, payload: Payload) -> pb.SubmitUpdateReply: ...
    def report_evaluation(self, request: pb.ReportEvaluationRequest) -> pb.ReportEvaluationReply: ...
    def file_unlearning(self, request: pb.FileUnlearningRequest) -> pb.FileUnlearningReply: ...
    def list_my_tickets(self) -> pb.ListMyTicketsReply: ...

    def follow_ticket(self, ticket_id: str) -> Iterator[pb.FollowTicketReply]:
        """Yields the ticket now and after every change, until it ends."""

    def report_measurement(self, request: pb.ReportMeasurementRequest) -> pb.ReportMeasurementReply: ...
    def withdraw_unlearning(self, request: pb.WithdrawUnlearningRequest) -> pb.WithdrawUnlearningReply: ...
    def get_receipt(self, ticket_id: str) -> pb.GetReceiptReply: ...
    def present_receipt(self, request: pb.PresentReceiptRequest) -> pb.PresentReceiptReply: ...
    def close(self) -> None: ...
