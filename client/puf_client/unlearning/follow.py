"""Follows a ticket to its end: does the client's work if no worker runs, and measures the models of the ticket."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from puf_client.machine import THIS_MACHINE, Machine
from puf_client.routines.measure import ModelMeasurement
from puf_client.session.session import Session
from puf_client.state.directory import StateDirectory
from puf_client.terminal import Display, console
from puf_client.transport.base import ENDED, Transport
from puf_client.unlearning.measure_models import ModelMeasurer
from puf_client.unlearning.tickets import clock, state_name
from puf_common.errors import Forgotten, PufError, Superseded, WorkerAlive
from puf_common.logging import get_logger
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

if TYPE_CHECKING:
    from puf_client.worker.worker import Worker

log = get_logger("puf_client.unlearning.follow")

_WAITING = (tk.TICKET_STATE_PENDING, tk.TICKET_STATE_SCHEDULED)
_APPLIED = (tk.TICKET_STATE_APPLIED, tk.TICKET_STATE_RECOVERING, tk.TICKET_STATE_COMPLETED)
_POLL_SECONDS = 1.0


class Substitute:
    """The client's worker for the unlearning round, if no other worker of this client runs."""

    def __init__(self, worker: Worker, description: pb.DescribeReply) -> None:
        self.worker = worker
        self.session: Session | None = None
        self._description = description

    def start(self) -> None:
        """Joins the federation. Does nothing if another worker is alive or the round is over."""
        try:
            self.session = self.worker.join(self._description, only_if_no_worker=True)
            log.info("no worker runs: this process does the unlearning round", why=self.worker.trainer.choice.why)
        except (WorkerAlive, Forgotten) as error:
            log.info("not needed as a worker", reason=error.message)

    def work(self) -> bool:
        """Does the next work, if there is one within a second. Returns False without a session."""
        session = self.session
        if session is None:
            return False
        try:
            work = session.step(_POLL_SECONDS)
            if work is not None:
                self.worker.do(work, session)
        except Superseded:
            log.info("another worker of this client continues")
            self.close()
        if session.leave is not None:
            self.close()
        return True

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None


class TicketFollower:
    """Follows one ticket. `measurements` has what this client measured, by model version."""

    def __init__(
        self,
        transport: Transport,
        state: StateDirectory,
        display: Display,
        substitute: Substitute | None,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        own = (substitute.worker.trainer, substitute.worker.samples) if substitute is not None else None
        self._measurer = ModelMeasurer(transport, state, own, display)
        self._transport = transport
        self._state = state
        self._display = display
        self._machine = machine
        self._substitute = substitute
        self._shown = 0
        self._wait_shown = False

    @property
    def measurements(self) -> Mapping[int, ModelMeasurement]:
        return self._measurer.measurements

    def follow(self, ticket: tk.Ticket) -> tk.Ticket:
        """Returns the ticket when it has ended."""
        changes = _Changes(self._transport, ticket.id, self._machine)
        try:
            self._handle(ticket)
            while ticket.state not in ENDED:
                self._substitute_worker(ticket)
                waits = f" and waits for operator approval: {ticket.held}" if ticket.held else ""
                self._display.say(f"{ticket.id} is {state_name(ticket.state)}{waits}")
                worked = self._substitute is not None and self._substitute.work()
                ticket = changes.newest(wait=not worked) or ticket
                self._handle(ticket)
        finally:
            if self._substitute is not None:
                self._substitute.close()
        return ticket

    def _handle(self, ticket: tk.Ticket) -> None:
        """Prints new events of the ticket, and measures its new models."""
        for event in ticket.history[self._shown :]:
            console().print(f"{clock(event.at)}  {state_name(event.state):<11}{event.note}")
        self._shown = len(ticket.history)
        if ticket.state not in _APPLIED:
            return
        if ticket.request.scope == tk.SCOPE_CLIENT:
            self._state.mark_forgotten(membership=ticket.membership, ticket_id=ticket.id)
        self._measurer.measure(ticket)

    def _substitute_worker(self, ticket: tk.Ticket) -> None:
        """Starts the substitute if the ticket waits for a worker and none is alive."""
        if ticket.state not in _WAITING or ticket.worker_alive:
            return
        if self._substitute is None:
            if not self._wait_shown:
                console().print("No worker of this client runs, and without --data this process cannot do its work:")
                console().print("the request waits until `puf-client run` is started again.")
                self._wait_shown = True
        elif self._substitute.session is None:
            self._substitute.start()


class _Changes:
    """The changes of a ticket, which a thread collects."""

    def __init__(self, transport: Transport, ticket_id: str, machine: Machine) -> None:
        self._transport = transport
        self._ticket_id = ticket_id
        self._found: deque[tk.Ticket | PufError] = deque()
        self._more = machine.event()
        machine.start(self._follow, "puf-follow")

    def _follow(self) -> None:
        try:
            for reply in self._transport.follow_ticket(self._ticket_id):
                self._add(reply.ticket)
        except PufError as error:
            self._add(error)

    def _add(self, found: tk.Ticket | PufError) -> None:
        self._found.append(found)
        self._more.set()

    def newest(self, *, wait: bool) -> tk.Ticket | None:
        """Returns the ticket after all changes; None without one. With `wait`, waits up to a second for a change."""
        if wait:
            self._more.wait(_POLL_SECONDS)
        # First: a change that is added from here on sets it again.
        self._more.clear()
        newest: tk.Ticket | None = None
        while self._found:
            found = self._found.popleft()
            if isinstance(found, PufError):
                raise found
            newest = found
        return newest
