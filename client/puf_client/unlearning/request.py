"""`puf-client --unlearn`: ask to be forgotten, take part in the one round it takes, see what came of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from puf_client.cli.options import UnlearnOptions
from puf_client.session.session import Session, connect
from puf_client.state.directory import StateDir
from puf_client.transport.dial import dial
from puf_client.transport.grpc import ENDED, Transport
from puf_client.unlearning import sample_list
from puf_client.unlearning.measure import Measured, Seen, measured
from puf_client.unlearning.receipt import collect, writable
from puf_client.unlearning.reconcile import look_back
from puf_client.unlearning.show import show_outcome, show_request
from puf_client.unlearning.tickets import clock, confirm, settle, state_name
from puf_client.worker.display import Display, console
from puf_client.worker.lease import leased
from puf_client.worker.worker import Worker
from puf_common.config.exit_codes import Exit
from puf_common.errors import (
    Forgotten,
    InvalidArgument,
    Mismatch,
    NotFound,
    NotNow,
    NotYours,
    PufError,
    StorageCorrupted,
    Superseded,
    TooMuch,
    TransferCorrupted,
    UsageError,
    WorkerAlive,
)
from puf_common.logging import get_logger
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

if TYPE_CHECKING:
    from puf_client.worker.trainer import Learner

__all__ = ["Plan", "Unlearning", "file", "plan", "run_unlearn"]

log = get_logger("puf_client.unlearning.request")

_WAITING = (tk.TICKET_STATE_PENDING, tk.TICKET_STATE_SCHEDULED)
_APPLIED = (tk.TICKET_STATE_APPLIED, tk.TICKET_STATE_RECOVERING, tk.TICKET_STATE_COMPLETED)
_POLL_SECONDS = 1.0


def run_unlearn(options: UnlearnOptions) -> Exit:
    """Files the request, or finds it filed already, and stays with it to its end."""
    if options.forget is not None and not options.data:
        raise UsageError("samples are named by the ids of the data: set --data as for `puf-client run`")
    writable(options.receipt_dir)
    with dial(options, server=options.server, name=options.name, patience=options.patience) as transport:
        description = transport.describe()
        state = StateDir.of(description.federation_id, options.name, options.state)
        learner = _learner(options, description, transport, state)
        state.pin_server_key(description.server_key)
        if state.unsettled():
            settle(state, transport)
        look_back(transport, state)
        mine = list(transport.list_my_tickets().tickets)
        wanted = plan(options, description.forgetting, state, learner, mine, description.method or "puf")
        show_request(options.name, description, wanted.request, wanted.ticket)
        if options.dry_run:
            console().print("dry run: nothing was filed")
            return Exit.OK
        ticket = wanted.ticket
        if ticket is None:
            if not options.yes:
                confirm("This cannot be undone once its round has begun.", options.name)
            ticket = file(wanted, state, transport)
        try:
            with Display() as display:
                seen = Unlearning(transport, description, state, learner, display)
                ticket = seen.to_the_end(ticket)
        except KeyboardInterrupt:
            console().print(f"The request stands as {ticket.id}; the same command goes on watching it.")
            raise
        show_outcome(ticket, seen.measured)
        if ticket.state != tk.TICKET_STATE_COMPLETED:
            return Exit.FAILURE
        _receipt(transport, state, ticket.id, options.receipt_dir)
        return Exit.OK


def _receipt(transport: Transport, state: StateDir, ticket_id: str, directory: Path) -> None:
    """One that does not verify is an error; one that cannot be had now can be fetched later."""
    try:
        paths = collect(transport, state, ticket_id, directory)
    except (TransferCorrupted, StorageCorrupted, Mismatch):
        raise
    except PufError as error:
        console().print(f"The receipt is not here yet ({error.message}): `puf-client receipt {ticket_id}` fetches it.")
        return
    for path in paths:
        console().print(f"Receipt: {path}", soft_wrap=True)


def _learner(
    options: UnlearnOptions, description: pb.DescribeReply, transport: Transport, state: StateDir
) -> Learner | None:
    if not options.data:
        return None
    options = leased(options, transport, state)
    from puf_client.worker.trainer import prepare

    return prepare(options, description)


@dataclass(frozen=True)
class Plan:
    """What will be asked for; `ticket` where the same was asked before and stands."""

    request: tk.UnlearningRequest
    ids: tuple[str, ...] = ()
    ticket: tk.Ticket | None = None


def plan(
    options: UnlearnOptions,
    policy: pb.ForgettingPolicy,
    state: StateDir,
    learner: Learner | None,
    tickets: list[tk.Ticket],
    method: str = "puf",
) -> Plan:
    """The request that the options describe. Refuses what the data does not have, before anything is filed.

    Mode, side and strength are PUF's: where the federation has another `method`, only what was asked for is said, and the
    server refuses it with the reason.
    """
    puf = method == "puf"
    request = tk.UnlearningRequest(
        mode=f"MODE_{options.mode.upper()}" if options.mode else policy.default_mode if puf else None,
        flip=f"FLIP_{options.flip.upper()}" if options.flip else policy.default_flip if puf else None,
        strength=tk.Strength(epochs=options.unlearn_epochs or (policy.default_epochs if puf else 0)),
        reference=options.reference,
        received_at=options.received.timestamp() if options.received else 0.0,
    )
    if options.eta_u is not None:
        request.strength.eta_u = options.eta_u
    elif puf or options.kappa is not None:
        request.strength.kappa = policy.default_kappa if options.kappa is None else options.kappa
    if options.forget is None or learner is None:
        return _whole_client(request, tickets)
    indices = sample_list.read(options.forget, learner.data.ids, learner.data.groups)
    return _samples(request, state, learner.data.ids, indices, tickets)


def _whole_client(request: tk.UnlearningRequest, tickets: list[tk.Ticket]) -> Plan:
    request.scope = tk.SCOPE_CLIENT
    # Counts earlier requests: after a withdrawn one the same question is a new one.
    request.request_key = f"client-{len(tickets)}"
    standing = next((t for t in tickets if t.request.scope == tk.SCOPE_CLIENT and t.state not in ENDED), None)
    return Plan(standing.request if standing else request, ticket=standing)


def _samples(
    request: tk.UnlearningRequest, state: StateDir, ids: Sequence[str], indices: list[int], tickets: list[tk.Ticket]
) -> Plan:
    chosen = tuple(ids[i] for i in indices)
    key = state.request_key(chosen)
    asked = [t for t in tickets if t.request.request_key.startswith(key)]
    standing = next((t for t in asked if t.state not in ENDED or t.state == tk.TICKET_STATE_COMPLETED), None)
    if standing is not None:
        return Plan(standing.request, chosen, standing)
    # One that failed, or that the server withdrew by itself when another request took it over: not forgotten yet.
    again_of = next(
        (t for t in asked if (kept := state.exclusion(t.request.request_key)) is not None and kept.effective), None
    )
    gone = state.excluded(ids)
    if again_of is not None:
        gone[indices] = False
    again = [ids[i] for i in indices if gone[i]]
    if again:
        raise UsageError(
            f"forgotten before: {', '.join(again[:5])}{', ...' if len(again) > 5 else ''}; nothing was filed"
        )
    remaining = len(ids) - int(gone.sum()) - len(indices)
    if remaining == 0:
        raise UsageError("no sample would remain: leave --forget away to have the whole client forgotten")
    request.scope = tk.SCOPE_SAMPLES
    request.request_key = f"{key}-{len(asked)}" if asked else key
    request.forget_samples, request.retain_samples = len(indices), remaining
    request.replaces = again_of.id if again_of is not None else ""
    return Plan(request, chosen)


def file(wanted: Plan, state: StateDir, transport: Transport) -> tk.Ticket:
    """Writes down which samples are meant, files, and notes the ticket: a kill in between loses nothing."""
    key = wanted.request.request_key
    if wanted.ids:
        state.prepare(key, wanted.ids)
    try:
        reply = transport.file_unlearning(pb.FileUnlearningRequest(request=wanted.request))
    except (InvalidArgument, NotNow, NotFound, NotYours, TooMuch) as error:
        # A refusal: nothing was filed. After anything else it may stand, and the next run asks the server.
        if wanted.ids:
            state.discard(key)
        # Nothing is wrong with the command line: the federation's policy says no.
        raise NotNow(error.message, **error.facts) if isinstance(error, InvalidArgument) else error from None
    ticket = reply.ticket
    if ticket.request.request_key == key and wanted.ids:
        state.filed(key, ticket.id)
    elif wanted.ids:
        state.discard(key)
        raise NotNow(f"{ticket.id} asks for the whole client to be forgotten already", ticket=ticket.id)
    log.info("filed", ticket=ticket.id, duplicate=reply.duplicate, worker_alive=ticket.worker_alive)
    return ticket


class Unlearning:
    """Stays with one ticket: works where nobody else does, measures the models while they are there."""

    def __init__(
        self,
        transport: Transport,
        description: pb.DescribeReply,
        state: StateDir,
        learner: Learner | None,
        display: Display,
    ) -> None:
        self.measured: dict[int, Measured] = {}
        self._transport = transport
        self._description = description
        self._state = state
        self._learner = learner
        self._display = display
        self._worker = Worker(learner, state, transport, display) if learner is not None else None
        self._session: Session | None = None
        # Models that were looked at and not told of yet.
        self._seen: dict[int, Seen] = {}
        self._told = 0
        self._told_to_wait = False

    def to_the_end(self, ticket: tk.Ticket) -> tk.Ticket:
        """The ticket as it ended."""
        try:
            with _followed(self._transport, ticket.id) as changes:
                self._look(ticket)
                while ticket.state not in ENDED:
                    self._stand_in(ticket)
                    waits = f" and waits for the operator's word: {ticket.held}" if ticket.held else ""
                    self._display.say(f"{ticket.id} is {state_name(ticket.state)}{waits}")
                    if self._session is not None and self._worker is not None:
                        self._work(self._session, self._worker)
                    ticket = _newest(changes, ticket, wait=self._session is None)
                    self._look(ticket)
        finally:
            if self._session is not None:
                self._session.close()
        return ticket

    def _look(self, ticket: tk.Ticket) -> None:
        """Tells what is new about the ticket, and measures what it brought."""
        for step in ticket.history[self._told :]:
            console().print(f"{clock(step.at)}  {state_name(step.state):<11}{step.note}")
        self._told = len(ticket.history)
        if ticket.state not in _APPLIED:
            return
        if ticket.request.scope == tk.SCOPE_CLIENT:
            self._state.mark_forgotten(membership=ticket.membership, ticket_id=ticket.id)
        # Before and unlearned at once: both are deleted when the ticket completes.
        for name in ("version_before", "version_unlearned", "version_recovered"):
            if ticket.HasField(name):
                self._measure(ticket, getattr(ticket, name))

    def _measure(self, ticket: tk.Ticket, version: int) -> None:
        if version in self.measured:
            return
        known = next((m for m in ticket.measurements if m.version == version), None)
        if self._learner is None or known is not None:
            if known is not None:
                self.measured[version] = Measured.told(known)
            return
        try:
            seen = self._seen.get(version) or self._see(ticket, version, self._learner)
        except (NotFound, NotYours, NotNow) as error:
            log.warning("model cannot be measured", version=version, reason=error.message)
            self.measured[version] = Measured(None)
            return
        self._seen[version] = seen
        if ticket.retained_pending and version == ticket.version_unlearned:
            # The others still measure this model; attacks need their sums, and the model may be gone by then.
            return
        retained = next((r.training for r in ticket.retained if r.version == version), None)
        found = self.measured[version] = measured(seen, retained)
        del self._seen[version]
        try:
            self._transport.report_measurement(found.request(ticket.id, version))
        except PufError as error:
            log.warning("measurement not taken", version=version, reason=error.message)

    def _see(self, ticket: tk.Ticket, version: int, learner: Learner) -> Seen:
        self._display.say(f"measuring model {version}")
        _, payload = self._transport.fetch_model(version)
        return Seen(
            learner.look_at_samples(payload, self._forgotten_samples(ticket)),
            learner.look_at_holdout(payload) if learner.data.holdout_samples else None,
        )

    def _forgotten_samples(self, ticket: tk.Ticket) -> NDArray[np.intp]:
        assert self._learner is not None
        assert self._worker is not None
        if ticket.request.scope == tk.SCOPE_SAMPLES:
            return self._state.forget_indices(self._learner.data.ids, ticket.request.request_key)
        return self._worker.current()

    def _stand_in(self, ticket: tk.Ticket) -> None:
        """Becomes the worker for the last round, if nobody else is."""
        if self._session is not None or ticket.state not in _WAITING or ticket.worker_alive:
            return
        if self._learner is None or self._worker is None:
            if not self._told_to_wait:
                console().print(
                    "No worker of this client lives, and without --data this process cannot stand in for it:"
                )
                console().print("the request waits until `puf-client run` is started again.")
                self._told_to_wait = True
            return
        try:
            self._session = connect(
                self._transport,
                samples=self._worker.count,
                holdout_samples=self._learner.data.holdout_samples,
                manifest=self._learner.manifest,
                description=self._description,
                plugin_version=self._learner.plugin_version,
                device=str(self._learner.choice.device),
                only_if_no_worker=True,
            )
            log.info("no worker lives: standing in for the last round", why=self._learner.choice.why)
        except (WorkerAlive, Forgotten) as error:
            # Somebody came first, or the round is over: there is nothing to do but to watch.
            log.info("not needed as a worker", reason=error.message)

    def _work(self, session: Session, worker: Worker) -> None:
        try:
            work = session.step(_POLL_SECONDS)
            if work is not None:
                worker.do(work, session)
        except Superseded:
            log.info("another worker of this client has taken over")
            session.close()
            self._session = None
        if session.leave is not None:
            session.close()
            self._session = None


@contextmanager
def _followed(transport: Transport, ticket_id: str) -> Iterator[queue.Queue[tk.Ticket | PufError]]:
    """The ticket's changes as they come, read by a thread of its own."""
    changes: queue.Queue[tk.Ticket | PufError] = queue.Queue()

    def follow() -> None:
        try:
            for reply in transport.follow_ticket(ticket_id):
                changes.put(reply.ticket)
        except PufError as error:
            changes.put(error)

    threading.Thread(target=follow, name="puf-follow", daemon=True).start()
    yield changes


def _newest(changes: queue.Queue[tk.Ticket | PufError], ticket: tk.Ticket, *, wait: bool) -> tk.Ticket:
    """The ticket after all changes so far; waits a moment for one where there is nothing else to do."""
    try:
        found = changes.get(timeout=_POLL_SECONDS if wait else 0.001)
        while True:
            if isinstance(found, PufError):
                raise found
            ticket = found
            found = changes.get_nowait()
    except queue.Empty:
        return ticket
