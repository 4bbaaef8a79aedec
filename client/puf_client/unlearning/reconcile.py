"""Whether server and client still know the same: after a restored backup, or a lost directory, they do not."""

from __future__ import annotations

from collections.abc import Iterable

from puf_client.state.directory import StateDir
from puf_client.transport.grpc import Transport
from puf_common.errors import Mismatch, NotFound, NotNow, StorageCorrupted, TransferCorrupted
from puf_common.logging import get_logger
from puf_common.receipts import receipt_file
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

__all__ = ["look_back", "require_exclusions"]

log = get_logger("puf_client.unlearning.reconcile")


def look_back(transport: Transport, state: StateDir) -> list[str]:
    """Finds out whether server and client still know the same: refuses to go on where forgotten samples would be trained
    on, and shows the kept receipts of requests that the server does not know any more. Returns those it opened again."""
    known = list(transport.list_my_tickets().tickets)
    require_exclusions(state, known)
    reopened = []
    for file in state.receipts():
        receipt = receipt_file.read(file)
        if any(t.id == receipt.ticket for t in known):
            continue
        try:
            reply = transport.present_receipt(pb.PresentReceiptRequest(receipt=file))
        except (NotNow, NotFound, TransferCorrupted, StorageCorrupted) as error:
            log.warning("the server does not take a receipt", ticket=receipt.ticket, reason=error.message)
            continue
        if reply.reopened:
            log.error(
                "the server was restored from an older backup and knew nothing of a completed request; it is open again",
                ticket=receipt.ticket,
                outcome=reply.outcome,
            )
            reopened.append(receipt.ticket)
    return reopened


def require_exclusions(state: StateDir, tickets: Iterable[tk.Ticket]) -> None:
    """Refuses where a request for samples stands at the server and nobody here knows which samples they are."""
    for ticket in tickets:
        # One that another took over was not taken back by its owner: its samples stay out whatever becomes of the other.
        taken_back = ticket.state == tk.TICKET_STATE_WITHDRAWN and not ticket.taken_over
        if ticket.request.scope != tk.SCOPE_SAMPLES or taken_back:
            continue
        if state.exclusion(ticket.request.request_key) is None:
            raise Mismatch(
                f"{ticket.id} asks for {ticket.request.forget_samples} samples of {ticket.client} to be forgotten, and "
                f"{state.path} does not know which: they would be trained on again. Bring that directory back (--state), "
                f"or name them once more: puf-client data exclude {ticket.id} --forget FILE, with --data as for run",
                ticket=ticket.id,
            )
