"""A client transport without a network: it calls the server's request handlers directly."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from puf_client.session.recent import MODELS_KEPT
from puf_client.transport.base import ENDED, HeldModel
from puf_common.errors import PufError
from puf_common.tensors.chunks import Payload, chunks
from puf_common.v1 import federation_pb2 as fed
from puf_server.core.state.models import ModelVersion
from puf_server.core.unlearning import model_versions
from puf_server.rpc.requests import Handlers


class SharedModels:
    """The payloads of the last models, read once for all clients of this process. Clients only read them."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._payloads: OrderedDict[str, memoryview] = OrderedDict()
        # The digests of the last two models between which a difference was asked for, and its length.
        self._difference: tuple[tuple[str, str], int] = (("", ""), 0)

    def payload(self, model: ModelVersion) -> memoryview:
        if model.digest not in self._payloads:
            read = self._handlers.engine.store.models.payload(model)
            self._payloads[model.digest] = memoryview(read).toreadonly()
            while len(self._payloads) > MODELS_KEPT:
                self._payloads.popitem(last=False)
        return self._payloads[model.digest]

    def sent_nbytes(self, model: ModelVersion, held: int) -> int:
        """Bytes that the service would send to a client with the version `held`: of a difference, or of the whole model."""
        engine = self._handlers.engine
        pair = (held, model.version)
        if engine.config.plan.step_encoding == "full" or pair not in model_versions.differences(engine.state):
            return model.nbytes
        base = engine.state.models[pair[0]]
        digests = (base.digest, model.digest)
        if self._difference[0] != digests:
            files = engine.store.differences
            found = files.find(base, model) or files.make(base, model, lambda: True)
            self._difference = digests, found.nbytes if found else model.nbytes
        return self._difference[1]


class DirectTransport:
    """The client's `Transport`, implemented by calling the server's request handlers."""

    def __init__(self, handlers: Handlers, name: str, models: SharedModels) -> None:
        self._handlers = handlers
        self._models = models
        # The versions that a client of the service would still have.
        self._held: list[int] = []
        self.name = name

    def describe(self) -> fed.DescribeReply:
        return self._handlers.describe(fed.DescribeRequest())

    def lease_shard(self, request: fed.LeaseShardRequest) -> fed.LeaseShardReply:
        return self._handlers.lease_shard(self.name, request)

    def join(self, request: fed.JoinRequest) -> fed.JoinReply:
        return self._handlers.join(self.name, request)

    def heartbeat(self, request: fed.HeartbeatRequest) -> fed.HeartbeatReply:
        return self._handlers.heartbeat(self.name, request)

    def wait_for_work(self, request: fed.WaitForWorkRequest) -> fed.WaitForWorkReply | None:
        return self._handlers.work(self.name, request.session)

    def decline_work(self, request: fed.DeclineWorkRequest) -> fed.DeclineWorkReply:
        return self._handlers.decline(self.name, request)

    def leave(self, request: fed.LeaveRequest) -> fed.LeaveReply:
        return self._handlers.leave(self.name, request)

    def fetch_model(self, version: int, held: HeldModel | None = None) -> tuple[fed.ModelHeader, Payload]:
        model = self._handlers.model_for(self.name, version)
        payload = self._models.payload(model)
        if version in self._held:
            self._held.remove(version)
        else:
            self._handlers.count_sent(self._models.sent_nbytes(model, max(self._held, default=-1)))
        self._held = [*self._held, version][-MODELS_KEPT:]
        return self._handlers.model_header(model), payload

    def submit_update(self, header: fed.UpdateHeader, payload: Payload) -> fed.SubmitUpdateReply:
        upload = self._handlers.begin_upload(self.name, header)
        try:
            for chunk in chunks(payload):
                upload.write(chunk)
            return self._handlers.finish_upload(upload)
        finally:
            upload.discard()

    def report_evaluation(self, request: fed.ReportEvaluationRequest) -> fed.ReportEvaluationReply:
        return self._handlers.report_evaluation(self.name, request)

    def file_unlearning(self, request: fed.FileUnlearningRequest) -> fed.FileUnlearningReply:
        return self._handlers.tickets.file_unlearning(self.name, request)

    def list_my_tickets(self) -> fed.ListMyTicketsReply:
        return self._handlers.tickets.list_my_tickets(self.name)

    def follow_ticket(self, ticket_id: str) -> Iterator[fed.FollowTicketReply]:
        ticket = self._handlers.tickets.view(self.name, ticket_id)
        yield fed.FollowTicketReply(ticket=ticket, position=self._handlers.position())
        if ticket.state not in ENDED:
            raise PufError("a ticket of a federation in this process is not followed; read its state again instead")

    def report_measurement(self, request: fed.ReportMeasurementRequest) -> fed.ReportMeasurementReply:
        return self._handlers.tickets.report_measurement(self.name, request)

    def withdraw_unlearning(self, request: fed.WithdrawUnlearningRequest) -> fed.WithdrawUnlearningReply:
        return self._handlers.tickets.withdraw(self.name, request)

    def get_receipt(self, ticket_id: str) -> fed.GetReceiptReply:
        return self._handlers.tickets.get_receipt(self.name, fed.GetReceiptRequest(ticket_id=ticket_id))

    def present_receipt(self, request: fed.PresentReceiptRequest) -> fed.PresentReceiptReply:
        return self._handlers.tickets.present_receipt(self.name, request)

    def close(self) -> None:
        pass
