"""Agreement of client and server about forgotten data, also after a restored backup or a lost state directory."""

from __future__ import annotations

from collections.abc import Iterable

from puf_client.state.directory import StateDirectory
from puf_client.transport.base import Transport
from puf_common.errors import Mismatch, NotFound, NotNow, NotYours, StorageCorrupted, TransferCorrupted
from puf_common.logging import get_logger
from puf_common.receipts import signed_receipt
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

log = get_logger("puf_client.session.reconcile")

# A server that has the ticket of a receipt in these states was restored from a backup that is older than the receipt.
_INCOMPLETE = (tk.TICKET_STATE_PENDING, tk.TICKET_STATE_SCHEDULED, tk.TICKET_STATE_FAILED)


def settle(state: StateDirectory, transport: Transport) -> None:
    """Updates the state directory from the server: which of its requests were filed, and which were withdrawn."""
    if state.unsettled():
        _settle(state, transport.list_my_tickets().tickets)


def _settle(state: StateDirectory, tickets: Iterable[tk.Ticket]) -> None:
    state.settle((t.request.request_key, t.id, _withdrawn(t)) for t in tickets)


def _withdrawn(ticket: tk.Ticket) -> bool:
    """Whether the owner withdrew it. If the server did because another one took it over, its samples stay excluded."""
    return ticket.state == tk.TICKET_STATE_WITHDRAWN and not ticket.taken_over


def reconcile(transport: Transport, state: StateDirectory) -> list[str]:
    """Presents receipts of requests that the server has not completed, and returns the tickets that it opened again.

    Raises `Mismatch` if this client would train on forgotten samples.
    """
    known = list(transport.list_my_tickets().tickets)
    agree(state, known)
    reopened = []
    for file in state.receipts():
        receipt = signed_receipt.read(file)
        if any(t.id == receipt.ticket and t.state not in _INCOMPLETE for t in known):
            continue
        try:
            reply = transport.present_receipt(pb.PresentReceiptRequest(receipt=file))
        except (NotNow, NotFound, TransferCorrupted, StorageCorrupted) as error:
            log.warning("the server refuses a receipt", ticket=receipt.ticket, reason=error.message)
            continue
        if reply.reopened:
            log.error(
                "the server was restored from a backup older than this completed request; the request is open again",
                ticket=receipt.ticket,
                outcome=reply.outcome,
            )
            reopened.append(receipt.ticket)
    return reopened


def reconciled(transport: Transport, state: StateDirectory) -> list[str]:
    """Returns the tickets that the server opened again; none if the server no longer accepts calls of this client."""
    try:
        return reconcile(transport, state)
    except (NotYours, NotFound) as error:
        log.debug("not reconciled", reason=error.message)
        return []


def agree(state: StateDirectory, tickets: Iterable[tk.Ticket]) -> None:
    """Excludes the samples of every request that the server has, also of one that it lost the withdrawal of.

    Raises `Mismatch` if the state directory does not know the samples of such a request.
    """
    for ticket in tickets:
        if ticket.request.scope != tk.SCOPE_SAMPLES or _withdrawn(ticket):
            continue
        known = state.exclusion(ticket.request.request_key)
        if known is None:
            raise Mismatch(
                f"{ticket.id} requests that {ticket.request.forget_samples} samples of {ticket.client} are forgotten, and "
                f"{state.path} does not know which: this client would train on them again. Restore that directory "
                f"(--state), or name the samples again: puf-client data exclude {ticket.id} --forget FILE, with --data as "
                "for run",
                ticket=ticket.id,
            )
        if known.withdrawn:
            log.error(
                "the server was restored from a backup in which this withdrawn request is open; its samples are left out "
                "of training. To have them back, run `puf-client withdraw` for this ticket",
                ticket=ticket.id,
            )
    _settle(state, tickets)
