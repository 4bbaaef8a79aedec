"""Requests about tickets and receipts as plain functions: request in, reply out, no gRPC."""

from __future__ import annotations

import secrets

from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core import tickets
from puf_server.core.state.measurements import Measurement
from puf_server.core.state.state import State
from puf_server.core.state.tickets import FiledBy, RequestForm
from puf_server.engine import receipts
from puf_server.engine.engine import Engine
from puf_server.failpoints import hit
from puf_server.ingest.uploads import Uploads
from puf_server.rpc import messages, ticket_messages


class TicketRequests:
    """`name` is the client that asks; None: the operator. Safe to use from any thread."""

    def __init__(self, engine: Engine, uploads: Uploads) -> None:
        self._engine = engine
        self._uploads = uploads

    def view(self, name: str | None, ticket_id: str) -> tk.Ticket:
        """A ticket as its client or the operator sees it."""
        engine = self._engine
        state, presence, config = engine.state, engine.presence, engine.config
        return ticket_messages.ticket(tickets.find(state, name, ticket_id), state, presence, config, engine.clock())

    def file_unlearning(self, name: str, request: fed.FileUnlearningRequest) -> fed.FileUnlearningReply:
        wanted = messages.request(request.request)
        if request.dry_run:
            return self._tried(name, wanted)
        hit("ticket.before_persist")
        ticket, duplicate = self._file(name, wanted, _new_id())
        hit("ticket.after_persist")
        return fed.FileUnlearningReply(
            ticket=self.view(name, ticket), duplicate=duplicate, position=messages.position(self._engine.state)
        )

    def _tried(self, name: str, wanted: RequestForm) -> fed.FileUnlearningReply:
        """The reply to a dry run. Raises as filing would; the state stays as it is."""
        engine = self._engine
        state, presence = engine.state, engine.presence
        _, ticket, known = tickets.file(
            state, presence, engine.config, name, wanted, ticket_id=_new_id(), now=engine.clock()
        )
        shown = self.view(name, ticket.id) if known else None
        return fed.FileUnlearningReply(ticket=shown, duplicate=known, position=messages.position(state))

    def forget(self, client: str, reference: str, received_at: float) -> tuple[tk.Ticket, bool]:
        """The operator's request to forget a whole client with the federation's defaults. True: it was filed before."""
        ticket_id = _new_id()
        wanted = RequestForm(
            key=f"operator-{ticket_id}", reference=reference, received_at=received_at or None, by=FiledBy.OPERATOR
        )
        ticket, duplicate = self._file(client, wanted, ticket_id)
        return self.view(None, ticket), duplicate

    def _file(self, client: str, wanted: RequestForm, ticket_id: str) -> tuple[str, bool]:
        """Files a request and deletes what has arrived of updates that it makes unwanted."""
        engine = self._engine

        def change(state: State, now: float) -> tuple[State, tuple[str, bool]]:
            state, ticket, duplicate = tickets.file(
                state, engine.presence, engine.config, client, wanted, ticket_id=ticket_id, now=now
            )
            return state, (ticket.id, duplicate)

        filed = engine.call(change)
        self._uploads.drop_unwanted()
        return filed

    def list_my_tickets(self, name: str, offset: int = 0) -> fed.ListMyTicketsReply:
        mine = [t for t in self._engine.state.tickets.values() if t.client == name]
        newest_first = sorted(mine, key=lambda t: -t.request.filed_at)
        return fed.ListMyTicketsReply(
            tickets=messages.page((self.view(name, t.id) for t in newest_first), offset),
            roster=messages.roster_entry(self._engine.state.members.get(name)),
        )

    def withdraw(self, name: str, request: fed.WithdrawUnlearningRequest) -> fed.WithdrawUnlearningReply:
        self._engine.call(lambda state, now: (tickets.withdraw(state, name, request.ticket_id, now)[0], None))
        return fed.WithdrawUnlearningReply(ticket=self.view(name, request.ticket_id))

    def report_measurement(self, name: str, request: fed.ReportMeasurementRequest) -> fed.ReportMeasurementReply:
        measured = Measurement(
            forget=messages.sums(request.forget),
            holdout=messages.sums(request.holdout) if request.HasField("holdout") else None,
            yeom=messages.attack(request.yeom) if request.HasField("yeom") else None,
            song=messages.attack(request.song) if request.HasField("song") else None,
            gap=messages.gap(request.gap) if request.HasField("gap") else None,
            own=messages.ranks(request.own) if request.HasField("own") else None,
            pool=messages.ranks(request.pool) if request.HasField("pool") else None,
        )

        def change(state: State, now: float) -> tuple[State, None]:
            return tickets.measure(state, name, request.ticket_id, request.version, measured, now)[0], None

        hit("measurement.before_persist")
        self._engine.call(change)
        hit("measurement.after_persist")
        return fed.ReportMeasurementReply(ticket=self.view(name, request.ticket_id))

    def get_receipt(self, name: str, request: fed.GetReceiptRequest) -> fed.GetReceiptReply:
        return fed.GetReceiptReply(receipt=receipts.issue(self._engine, request.ticket_id, name))

    def present_receipt(self, name: str, request: fed.PresentReceiptRequest) -> fed.PresentReceiptReply:
        reopened, why, ticket_id = receipts.present(self._engine, request.receipt, name)
        known = ticket_id in self._engine.state.tickets
        ticket = self.view(name, ticket_id) if known else None
        return fed.PresentReceiptReply(reopened=reopened, outcome=why, ticket=ticket)


def _new_id() -> str:
    return f"t-{secrets.token_hex(6)}"
