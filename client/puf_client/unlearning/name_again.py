"""Names the samples of a ticket again, after the loss of the state directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from puf_client.machine import THIS_MACHINE, Machine
from puf_client.state.directory import StateDirectory
from puf_client.transport.base import Transport
from puf_common.errors import NotFound, UsageError
from puf_common.v1 import tickets_pb2 as tk


def name_again(
    transport: Transport, root: Path | None, ticket_id: str, ids: Sequence[str], machine: Machine = THIS_MACHINE
) -> None:
    """Stores which samples a ticket names. Raises if the ticket is not for that many samples."""
    description = transport.describe()
    ticket = next((t for t in transport.list_my_tickets().tickets if t.id == ticket_id), None)
    if ticket is None or ticket.request.scope != tk.SCOPE_SAMPLES:
        raise NotFound(f"{ticket_id} is not a request of {transport.name} for samples", ticket=ticket_id)
    if ticket.state == tk.TICKET_STATE_WITHDRAWN and not ticket.taken_over:
        raise UsageError(f"{ticket_id} is withdrawn: its samples need not be excluded")
    if len(ids) != ticket.request.forget_samples:
        raise UsageError(f"{ticket_id} is for {ticket.request.forget_samples} samples, but the list names {len(ids)}")
    state = StateDirectory.of(description.federation_id, transport.name, root, machine.files)
    state.prepare(ticket.request.request_key, ids)
    state.filed(ticket.request.request_key, ticket.id)
