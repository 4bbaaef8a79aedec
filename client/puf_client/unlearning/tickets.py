"""`puf-client status | withdraw`: shows this client's requests, and withdraws one."""

from __future__ import annotations

import json
import time
from typing import Any

from google.protobuf.json_format import MessageToDict
from rich.table import Table

from puf_client.machine import THIS_MACHINE, Machine
from puf_client.options import Connection, WithdrawOptions
from puf_client.session.reconcile import reconcile
from puf_client.state.directory import StateDirectory
from puf_client.terminal import confirm, console
from puf_client.transport.base import Transport
from puf_client.transport.dial import dial
from puf_common.config.exit_codes import Exit
from puf_common.errors import NotFound, NotNow, UsageError
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

_CAN_BE_WITHDRAWN = (tk.TICKET_STATE_PENDING, tk.TICKET_STATE_FAILED)


def show_status(options: Connection, as_json: bool = False) -> Exit:
    """Prints the federation's progress and this client's requests."""
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        description = transport.describe()
        state = StateDirectory.of(description.federation_id, options.name, options.state)
        reopened = reconcile(transport, state)
        tickets = transport.list_my_tickets().tickets
    out = console()
    for ticket_id in reopened:
        out.print(
            f"{ticket_id} is open again, because the server did not know it: "
            "run `puf-client --unlearn` with the client's data."
        )
    if as_json:
        plain = [
            MessageToDict(t, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
            for t in tickets
        ]
        out.print(json.dumps(plain, indent=1), soft_wrap=True)
        return Exit.OK
    phase = _word(pb.Phase, description.position.phase, "PHASE_")
    done, planned = description.position.round, description.rounds_planned
    out.print(f"{description.title}: {phase}, {done} rounds done, {planned} planned")
    if not tickets:
        out.print(f"{options.name} has no request to be forgotten")
        return Exit.OK
    table = Table("ticket", "forgets", "mode", "strength", "state", "since", "note")
    for ticket in tickets:
        since = ticket.history[-1].at if ticket.history else 0.0
        mode = _word(tk.Mode, ticket.request.mode, "MODE_")
        columns = (ticket.id, scope_text(ticket), mode, strength(ticket.request), state_name(ticket.state))
        table.add_row(*columns, clock(since), last_note(ticket))
    out.print(table)
    return Exit.OK


def withdraw(options: WithdrawOptions, ticket_id: str) -> Exit:
    """Withdraws one request. Its samples return to training."""
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        return take_back(options, ticket_id, transport)


def take_back(options: WithdrawOptions, ticket_id: str, transport: Transport, machine: Machine = THIS_MACHINE) -> Exit:
    """Withdraws one request at the server and in the state directory."""
    ticket = _chosen(list(transport.list_my_tickets().tickets), ticket_id)
    if not options.yes:
        confirm(f"Withdraw {ticket.id} ({scope_text(ticket)})?", options.name)
    key = ticket.request.request_key
    state = StateDirectory.of(transport.describe().federation_id, options.name, options.state, machine.files)
    ours = state.exclusion(key) is not None
    if ours:
        # Stored first: if this process is killed, the next run completes the withdrawal.
        state.withdrawing(key, True)
    try:
        ticket = transport.withdraw_unlearning(pb.WithdrawUnlearningRequest(ticket_id=ticket.id)).ticket
    except (NotNow, NotFound):
        if ours:
            state.withdrawing(key, False)
        raise
    if ours:
        state.withdraw(key)
    console().print(f"{ticket.id} is withdrawn; {options.name} continues as before")
    return Exit.OK


def _chosen(tickets: list[tk.Ticket], ticket_id: str) -> tk.Ticket:
    candidates = [t for t in tickets if (t.id == ticket_id if ticket_id else t.state in _CAN_BE_WITHDRAWN)]
    if ticket_id and not candidates:
        raise NotFound(f"there is no ticket {ticket_id} of this client", ticket=ticket_id)
    if not candidates:
        raise UsageError("there is no request to withdraw: only pending and failed requests can be withdrawn")
    if len(candidates) > 1:
        raise UsageError(f"name the request to withdraw: {', '.join(t.id for t in candidates)}")
    return candidates[0]


def scope_text(ticket: tk.Ticket) -> str:
    request = ticket.request
    if request.scope == tk.SCOPE_SAMPLES:
        return f"{request.forget_samples} of {request.forget_samples + request.retain_samples} samples"
    return "the whole client"


def strength(request: tk.UnlearningRequest) -> str:
    """Returns the rate and epochs that the request sets."""
    rate = request.strength.WhichOneof("rate")
    if rate is None:
        return "set by the method"
    if rate == "auto":
        return "adaptive: several rounds, each as strong as its measured effect requires"
    value = request.strength.eta_u if rate == "eta_u" else request.strength.kappa
    return f"{rate} {value:g}, {request.strength.epochs} epoch{'s' if request.strength.epochs != 1 else ''}"


def state_name(state: tk.TicketState) -> str:
    return _word(tk.TicketState, state, "TICKET_STATE_")


def _word(enum: Any, value: int, prefix: str) -> str:
    """The word for a value of the contract. A newer server may send values that this version does not know."""
    return str(enum.Name(value)).removeprefix(prefix).lower() if value in enum.values() else f"unknown ({value})"


def last_note(ticket: tk.Ticket) -> str:
    """Returns why the ticket is on hold, or the note of its last event."""
    if ticket.held:
        return f"waits for operator approval: {ticket.held}"
    return ticket.history[-1].note if ticket.history else ""


def clock(at: float) -> str:
    """A time for people. The server's value may be no time at all."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "unknown time"
