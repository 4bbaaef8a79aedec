"""`puf-client --unlearn`: files the request, takes part in the unlearning round, and shows the outcome."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from puf_client.data import require_available
from puf_client.machine import THIS_MACHINE, Machine
from puf_client.options import UnlearnOptions
from puf_client.session.reconcile import reconcile, settle
from puf_client.state.directory import StateDirectory
from puf_client.terminal import Display, confirm, console
from puf_client.transport.base import Transport
from puf_client.transport.dial import dial
from puf_client.unlearning.data_check import check_data, known_member
from puf_client.unlearning.follow import Substitute, TicketFollower
from puf_client.unlearning.receipt import collect, require_writable
from puf_client.unlearning.request import file, plan, try_out
from puf_client.unlearning.show import show_outcome, show_request
from puf_client.worker.lease import leased
from puf_common.config.exit_codes import Exit
from puf_common.errors import Mismatch, PufError, StorageCorrupted, TransferCorrupted, UsageError
from puf_common.tracing.places import Place, place_of_ticket
from puf_common.tracing.process import past, span
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

if TYPE_CHECKING:
    from puf_client.worker.trainer import Load
    from puf_client.worker.worker import Worker


def run_unlearn(options: UnlearnOptions) -> Exit:
    """Files the request, or finds an equal one, and follows it to its end."""
    if options.data:
        require_available(options.data, options.data_dir)
    elif options.names_samples:
        raise UsageError("samples are named by the ids of the data: set --data as for `puf-client run`")
    require_writable(options.receipt_dir)
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        return unlearn(options, transport)


def unlearn(
    options: UnlearnOptions,
    transport: Transport,
    machine: Machine = THIS_MACHINE,
    load: Load[UnlearnOptions] | None = None,
) -> Exit:
    """Files and follows a request. `load` returns the trainer; the default prepares it from the options."""
    description = transport.describe()
    state = StateDirectory.of(description.federation_id, options.name, options.state, machine.files)
    display = Display()
    worker = _worker(options, description, transport, state, display, machine, load) if options.data else None
    state.pin_server_key(description.server_key)
    settle(state, transport)
    reconcile(transport, state)
    mine = transport.list_my_tickets()
    wanted = plan(options, description, state, worker.trainer if worker is not None else None, list(mine.tickets))
    roster = known_member(mine, options.name)
    show_request(options.name, description, wanted.request, wanted.ticket)
    if worker is not None:
        check_data(worker.samples, wanted, roster, options)
    if options.dry_run:
        try_out(wanted, transport)
        console().print("dry run: all checks passed, nothing was filed")
        return Exit.OK
    ticket = wanted.ticket
    if ticket is None:
        if not options.yes:
            confirm("This cannot be undone after its round has begun.", options.name)
        begun = time.time()
        ticket = file(wanted, state, transport)
        past("client.file", place_of_ticket(description.federation_id, ticket.id), begun, ticket=ticket.id)
    place = place_of_ticket(description.federation_id, ticket.id)
    try:
        with display, span("client.follow", place, ticket=ticket.id):
            substitute = Substitute(worker, description) if worker is not None else None
            follower = TicketFollower(transport, state, display, substitute, machine)
            ticket = follower.follow(ticket)
    except KeyboardInterrupt:
        console().print(f"The request remains filed as {ticket.id}; run the same command to follow it again.")
        raise
    show_outcome(ticket, follower.measurements)
    if ticket.state != tk.TICKET_STATE_COMPLETED:
        return Exit.FAILURE
    _receipt(transport, state, ticket.id, options.receipt_dir, place)
    return Exit.OK


def _worker(
    options: UnlearnOptions,
    description: pb.DescribeReply,
    transport: Transport,
    state: StateDirectory,
    display: Display,
    machine: Machine,
    load: Load[UnlearnOptions] | None,
) -> Worker:
    """Returns a worker that joins when needed. Loads the data, because requests name samples by its ids."""
    options = leased(options, transport, state)
    if load is None:
        from puf_client.worker.trainer import prepare

        load = prepare
    from puf_client.worker.worker import Worker

    trainer = load(options, description)
    trainer.check_fit()
    return Worker(trainer, state, transport, display, machine=machine)


def _receipt(transport: Transport, state: StateDirectory, ticket_id: str, directory: Path, place: Place) -> None:
    """Writes the receipt. Raises if it is not valid; a receipt that is not available yet can be fetched later."""
    try:
        with span("client.receipt", place, ticket=ticket_id):
            paths = collect(transport, state, ticket_id, directory)
    except (TransferCorrupted, StorageCorrupted, Mismatch):
        raise
    except PufError as error:
        console().print(
            f"The receipt is not available yet ({error.message}): fetch it with `puf-client receipt {ticket_id}`."
        )
        return
    for path in paths:
        console().print(f"Receipt: {path}", soft_wrap=True)
