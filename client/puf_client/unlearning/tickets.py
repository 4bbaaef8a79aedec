"""This client's own requests: shown, taken back, and kept in line with what its state directory says."""

from __future__ import annotations

import json
import sys
import time

from google.protobuf.json_format import MessageToDict
from rich.table import Table

from puf_client.cli.options import Connection, WithdrawOptions
from puf_client.state.directory import StateDir
from puf_client.transport.dial import dial
from puf_client.transport.grpc import Transport
from puf_client.unlearning.reconcile import look_back
from puf_client.worker.display import console
from puf_common.config.exit_codes import Exit
from puf_common.errors import NotFound, NotNow, UsageError
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

__all__ = [
    "asked_for",
    "clock",
    "confirm",
    "last_note",
    "settle",
    "show_status",
    "state_name",
    "strength",
    "withdraw",
]

_CAN_BE_WITHDRAWN = (tk.TICKET_STATE_PENDING, tk.TICKET_STATE_FAILED)


def settle(state: StateDir, transport: Transport) -> None:
    """Asks the server which of the requests in the state directory were filed, and which were taken back."""
    state.settle(
        (t.request.request_key, t.id, t.state == tk.TICKET_STATE_WITHDRAWN) for t in transport.list_my_tickets().tickets
    )


def show_status(options: Connection, *, as_json: bool = False) -> Exit:
    """Where the federation stands and what this client has asked of it."""
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        description = transport.describe()
        state = StateDir.of(description.federation_id, options.name, options.state)
        reopened = look_back(transport, state)
        tickets = transport.list_my_tickets().tickets
    out = console()
    for ticket_id in reopened:
        out.print(
            f"{ticket_id} is open again: the server had lost it. Run `puf-client --unlearn` with the client's data."
        )
    if as_json:
        plain = [
            MessageToDict(t, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
            for t in tickets
        ]
        out.print(json.dumps(plain, indent=1), soft_wrap=True)
        return Exit.OK
    phase = pb.Phase.Name(description.position.phase).removeprefix("PHASE_").lower()
    done, planned = description.position.round, description.rounds_planned
    out.print(f"{description.title}: {phase}, {done} rounds done, {planned} planned")
    if not tickets:
        out.print(f"{options.name} has not asked to be forgotten")
        return Exit.OK
    table = Table("ticket", "asks for", "mode", "strength", "state", "since", "note")
    for ticket in tickets:
        since = ticket.history[-1].at if ticket.history else 0.0
        mode = tk.Mode.Name(ticket.request.mode).removeprefix("MODE_").lower()
        columns = (ticket.id, asked_for(ticket), mode, strength(ticket.request), state_name(ticket.state))
        table.add_row(*columns, clock(since), last_note(ticket))
    out.print(table)
    return Exit.OK


def withdraw(options: WithdrawOptions, ticket_id: str) -> Exit:
    """Takes one request back; its samples return to training."""
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        tickets = transport.list_my_tickets().tickets
        ticket = _chosen(list(tickets), ticket_id)
        if not options.yes:
            confirm(f"Take back {ticket.id} ({asked_for(ticket)})?", options.name)
        key = ticket.request.request_key
        state = StateDir.of(transport.describe().federation_id, options.name, options.state)
        ours = state.exclusion(key) is not None
        if ours:
            # First the wish, then the deed: killed in between, the next run finishes it.
            state.withdrawing(key, True)
        try:
            ticket = transport.withdraw_unlearning(pb.WithdrawUnlearningRequest(ticket_id=ticket.id)).ticket
        except (NotNow, NotFound):
            if ours:
                state.withdrawing(key, False)
            raise
        if ours:
            state.withdraw(key)
    console().print(f"{ticket.id} is withdrawn; {options.name} goes on as before")
    return Exit.OK


def _chosen(tickets: list[tk.Ticket], ticket_id: str) -> tk.Ticket:
    if ticket_id:
        for ticket in tickets:
            if ticket.id == ticket_id:
                return ticket
        raise NotFound(f"there is no ticket {ticket_id} of this client", ticket=ticket_id)
    candidates = [t for t in tickets if t.state in _CAN_BE_WITHDRAWN]
    if not candidates:
        raise UsageError("there is no request that could be withdrawn: only pending and failed ones can")
    if len(candidates) > 1:
        raise UsageError(f"say which request: {', '.join(t.id for t in candidates)}")
    return candidates[0]


def confirm(question: str, name: str) -> None:
    """Has the client's name typed; scripts say --yes."""
    if not sys.stdin.isatty():
        raise UsageError("nobody is there to confirm: run it in a terminal, or add --yes")
    out = console()
    out.print(question)
    try:
        typed = out.input(f"Type the client's name ({name}) to go on: ").strip()
    except EOFError:
        typed = ""
    if typed != name:
        raise UsageError("the name does not match; nothing was done")


def asked_for(ticket: tk.Ticket) -> str:
    request = ticket.request
    if request.scope == tk.SCOPE_SAMPLES:
        return f"{request.forget_samples} of {request.forget_samples + request.retain_samples} samples"
    return "the whole client"


def strength(request: tk.UnlearningRequest) -> str:
    rate = request.strength.WhichOneof("rate")
    if rate is None:
        return "the method's own"
    value = request.strength.eta_u if rate == "eta_u" else request.strength.kappa
    return f"{rate} {value:g}, {request.strength.epochs} epoch{'s' if request.strength.epochs != 1 else ''}"


def state_name(state: tk.TicketState) -> str:
    return tk.TicketState.Name(state).removeprefix("TICKET_STATE_").lower()


def last_note(ticket: tk.Ticket) -> str:
    if ticket.held:
        return f"waits for the operator's word: {ticket.held}"
    return ticket.history[-1].note if ticket.history else ""


def clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
