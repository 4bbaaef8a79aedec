"""One client: a worker process that comes and goes, and its owner, who may ask for it to be forgotten.

The disk (exclusions, the mark of having been forgotten) survives; sessions, caches and training die with the process.
Errors are treated as puf_client.session.session and puf_client.unlearning.request treat them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from puf_common.errors import (
    Forgotten,
    InvalidUpdate,
    PufError,
    Superseded,
    Unavailable,
    UnknownSession,
    WorkerAlive,
)
from puf_server.core import assignments
from puf_server.core.state.measurements import Sums
from puf_server.core.state.rounds import Part
from puf_server.core.state.tickets import Scope, Ticket, TicketState
from puf_server.core.tickets import RequestForm
from tests.sim.server import Header, Leave
from tests.sim.weights import Update, Weights

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Agent"]

_DONE = (TicketState.APPLIED, TicketState.RECOVERING, TicketState.COMPLETED)
_ENDED = (TicketState.COMPLETED, TicketState.FAILED, TicketState.WITHDRAWN)


@dataclass
class Exclusion:
    ids: frozenset[int]
    ticket: str = ""
    withdrawn: bool = False
    # The owner wants it back; without that a server's word that it is withdrawn means nothing.
    withdrawing: bool = False


@dataclass
class Process:
    """What dies with a process. `alive` is False once it ended; late replies to it go nowhere."""

    instance: str = ""
    alive: bool = True
    frozen: bool = False
    session: str = ""
    announced: int = -1
    membership: int = 0
    training: str = ""
    parked: bool = False
    # Updates refused in a row; a worker that fails again and again ends itself.
    refused: int = 0
    cache: dict[str, tuple[frozenset[int], str]] = field(default_factory=dict)


class Agent:
    def __init__(self, world: World, name: str, samples: int, holdout: int) -> None:
        self.world = world
        self.name = name
        self.ids = frozenset(range(samples))
        self.holdout = holdout
        # Whether the owner's process has the data, so that it can be the worker where there is none.
        self.stands_in = world.rng.random() < 0.5
        # Disk.
        self.exclusions: dict[str, Exclusion] = {}
        # What a lost disk held; its owner has it on paper.
        self._lost: dict[str, Exclusion] = {}
        self.forgotten = False
        self.membership = 0
        self.asked = 0
        # Processes.
        self.worker: Process | None = None
        self.owner: Process | None = None
        self.following = ""
        self._instances = 0

    # -- the worker ----------------------------------------------------------------------------------------------------

    def start(self, *, rejoin: bool = False, only_if_no_worker: bool = False) -> None:
        """A supervisor starts the worker; one that was forgotten starts only where it is stubborn or readmitted."""
        if self.worker is not None and self.worker.alive:
            return
        self._instances += 1
        process = Process(instance=f"{self.name}-{self._instances}")
        self.worker = process
        self._join(process, rejoin=rejoin, only_if_no_worker=only_if_no_worker)
        self._beat(process)

    def kill(self) -> None:
        if self.worker is not None and self.worker.alive:
            self.world.log(f"{self.name} killed")
            self.worker.alive = False

    def freeze(self, seconds: float) -> None:
        """The machine sleeps: the same process goes on later."""
        process = self.worker
        if process is not None and process.alive and not process.frozen:
            self.world.log(f"{self.name} frozen for {seconds:.0f} s")
            process.frozen = True
            self.world.after(seconds, self._thaw, process)

    def goodbye(self) -> None:
        process = self.worker
        if process is not None and process.alive:
            session = process.session
            process.alive = False
            self._call(None, lambda: self.world.server.leave(self.name, session), lambda _: None)

    def _thaw(self, process: Process) -> None:
        process.frozen = False
        if process.alive:
            self._poll(process)

    def _exit(self, process: Process, why: str, restart: bool) -> None:
        if not process.alive:
            return
        self.world.log(f"{self.name} exits: {why}")
        process.alive = False
        if restart:
            self.world.after(self.world.rng.uniform(20.0, 120.0), self.start)

    def _call(self, process: Process | None, serve: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def heard(answer: Any) -> None:
            if process is None or (process.alive and not process.frozen):
                done(answer)
            elif process.alive:
                self.world.after(5.0, heard, answer)

        self.world.call(serve, heard)

    def _count(self) -> frozenset[int]:
        gone: frozenset[int] = frozenset().union(
            *(e.ids for e in self.exclusions.values() if e.ticket and not e.withdrawn)
        )
        return self.ids - gone

    def _settled(self, process: Process, then: Callable[[], None]) -> None:
        """Asks the server about requests of which nobody here knows whether they were filed."""
        if all(e.ticket and not (e.withdrawing and not e.withdrawn) for e in self.exclusions.values()):
            then()
            return

        def told(answer: Any) -> None:
            if isinstance(answer, PufError):
                self.world.after(5.0, self._again, process, lambda: self._settled(process, then))
                return
            for ticket in answer:
                known = self.exclusions.get(ticket.request.key)
                if known is not None:
                    gone = ticket.state is TicketState.WITHDRAWN and (known.withdrawing or known.withdrawn)
                    known.ticket, known.withdrawn = ticket.id, gone
            then()

        self._call(process, lambda: self.world.server.tickets_of(self.name), told)

    def _again(self, process: Process, then: Callable[[], None]) -> None:
        if process.alive and not process.frozen:
            then()
        elif process.alive:
            self.world.after(5.0, self._again, process, then)

    def lose_state(self) -> None:
        """The disk is gone, and what was written on it: the process that starts next knows of no exclusion."""
        self.kill()
        if self.owner is not None:
            self.owner.alive = False
        self._lost |= self.exclusions
        self.exclusions = {}

    def name_again(self) -> None:
        """The owner names the forgotten samples once more (`puf-client data exclude`), and the worker may run again."""
        self.exclusions = self._lost | self.exclusions
        self._lost = {}

    def _looked_back(self, process: Process, then: Callable[[], None]) -> None:
        """Does not work where the server knows of a request for samples, and nobody here knows which they are."""

        def told(answer: Any) -> None:
            if isinstance(answer, PufError):
                self.world.after(5.0, self._again, process, lambda: self._looked_back(process, then))
            elif any(
                not t.whole_client
                and (t.state is not TicketState.WITHDRAWN or t.taken_over)
                and t.request.key not in self.exclusions
                for t in answer
            ):
                self._exit(process, "forgotten samples are not known here", restart=True)
            else:
                then()

        self._call(process, lambda: self.world.server.tickets_of(self.name), told)

    def _join(self, process: Process, *, rejoin: bool = False, only_if_no_worker: bool = False) -> None:
        def go() -> None:
            count = len(self._count())

            def joined(answer: Any) -> None:
                if isinstance(answer, Unavailable):
                    later = self.world.rng.uniform(1.0, 10.0)
                    again = lambda: self._join(process, rejoin=rejoin, only_if_no_worker=only_if_no_worker)  # noqa: E731
                    self.world.after(later, self._again, process, again)
                elif isinstance(answer, Forgotten):
                    self._was_forgotten(process)
                elif isinstance(answer, WorkerAlive):
                    self._exit(process, "a worker lives", restart=False)
                elif isinstance(answer, PufError):
                    self._exit(process, str(answer), restart=True)
                else:
                    if process.membership and answer[1] != process.membership:
                        process.cache.clear()
                    process.session, process.membership = answer
                    if count != process.announced:
                        process.cache.clear()
                    process.announced = count
                    self.membership = process.membership
                    if rejoin:
                        self.forgotten = False
                    self._poll(process)

            self._call(
                process,
                lambda: self.world.server.join(
                    self.name,
                    instance=process.instance,
                    samples=count,
                    holdout=self.holdout,
                    rejoin=rejoin,
                    only_if_no_worker=only_if_no_worker,
                ),
                joined,
            )

        self._settled(process, lambda: self._looked_back(process, go))

    def _was_forgotten(self, process: Process) -> None:
        self.forgotten = True
        self._exit(process, "forgotten", restart=False)

    def _beat(self, process: Process) -> None:
        if not process.alive:
            return
        self.world.after(self.world.scenario.config.plan.heartbeat_seconds, self._beat, process)
        if process.frozen or not process.session:
            return
        session, training = process.session, process.training

        def heard(answer: Any) -> None:
            if isinstance(answer, UnknownSession):
                if process.session == session:
                    self._join(process)
            elif isinstance(answer, Superseded):
                self._exit(process, "superseded", restart=True)
            elif answer is True and process.training == training:
                process.training = ""
                self._poll(process)
            elif process.parked:
                # The answer to a long wait may be lost as any other.
                self._poll(process)

        self._call(process, lambda: self.world.server.heartbeat(self.name, session, training), heard)

    def _poll(self, process: Process) -> None:
        """Asks for work, unless there is some at hand."""
        if process.training or not process.alive or process.frozen:
            return
        process.parked = False

        def go() -> None:
            if len(self._count()) != process.announced:
                self._join(process)
                return
            session = process.session
            self._call(process, lambda: self._ask(process, session), lambda answer: self._do(process, answer))

        self._settled(process, go)

    def _ask(self, process: Process, session: str) -> Any:
        answer = self.world.server.work(self.name, session)
        if answer is None:
            self.world.server.waiters[self.name] = lambda: self.world.after(
                self.world.delay(), self._again, process, lambda: self._poll(process)
            )
        return answer

    def _do(self, process: Process, answer: Any) -> None:
        if process.training:
            return
        if answer is None:
            process.parked = True
        elif isinstance(answer, assignments.Train):
            self._train(process, answer)
        elif isinstance(answer, assignments.Evaluate):
            self._evaluate(process, answer)
        elif isinstance(answer, Leave):
            if answer.reason == "forgotten":
                self._was_forgotten(process)
            else:
                self._exit(process, "the federation stopped", restart=True)
        elif isinstance(answer, UnknownSession):
            self._join(process)
        elif isinstance(answer, Superseded):
            self._exit(process, "superseded", restart=True)
        elif isinstance(answer, Forgotten):
            self._was_forgotten(process)
        else:
            self.world.after(5.0, self._again, process, lambda: self._poll(process))

    def _train(self, process: Process, task: assignments.Train) -> None:
        key = assignments.training_id(task)
        if key in process.cache:
            process.training = key
            self._submit(process, task, key)
            return
        if self.world.strikes("decline"):
            assignment = task.assignment
            self._call(
                process,
                lambda: self.world.server.decline(
                    self.name, process.session, task.round.number, task.round.attempt, assignment.key
                ),
                lambda _: self.world.after(5.0, self._again, process, lambda: self._poll(process)),
            )
            return
        process.training = key

        def fetched(answer: Any) -> None:
            if process.training != key:
                return
            if isinstance(answer, Unavailable) or self.world.strikes("cut_stream"):
                self.world.after(2.0, self._again, process, lambda: self._call(process, fetch, fetched))
                return
            if isinstance(answer, PufError):
                self._done(process, key, 1.0)
                return
            model: Weights = answer

            def ready() -> None:
                ids = self._count()
                if task.assignment.part is Part.FORGET:
                    ids = self.exclusions[task.forget_request].ids
                seconds = self.world.rng.uniform(2.0, 60.0)
                if self.world.strikes("slow_training"):
                    seconds *= 10.0
                self.world.after(seconds, self._trained, process, task, key, ids, model.digest)

            self._settled(process, ready)

        def fetch() -> Weights:
            return self.world.server.fetch(self.name, task.round.base)

        self._call(process, fetch, fetched)

    def _trained(self, process: Process, task: assignments.Train, key: str, ids: frozenset[int], base: str) -> None:
        if not process.alive or process.training != key:
            return
        if process.frozen:
            self.world.after(5.0, self._trained, process, task, key, ids, base)
            return
        process.cache[key] = (ids, base)
        self._submit(process, task, key)

    def _submit(self, process: Process, task: assignments.Train, key: str) -> None:
        ids, base = process.cache[key]
        assignment, current = task.assignment, task.round
        update = Update(
            client=self.name,
            membership=assignment.membership,
            part=str(assignment.part),
            round=current.number,
            base=base,
            ids=ids,
            epochs=assignment.epochs,
            applied_scale=assignment.scale if assignment.flip == "client" else 1.0,
        )
        header = Header(
            membership=assignment.membership,
            number=current.number,
            attempt=current.attempt,
            part=assignment.part,
            base=current.base,
            samples=len(ids),
            applied_scale=update.applied_scale,
            update=update,
        )

        def begun(answer: Any) -> None:
            if isinstance(answer, PufError):
                finished(answer)
            elif self.world.strikes("cut_stream"):
                finished(Unavailable("the stream was cut between two chunks"))
            else:
                self._call(process, lambda: self.world.server.finish(self.name, header, answer), finished)

        def finished(answer: Any) -> None:
            if process.training != key:
                return
            if isinstance(answer, Unavailable):
                later = self.world.rng.uniform(1.0, 8.0)
                self.world.after(later, self._again, process, lambda: self._retry(process, task, key))
            elif isinstance(answer, Forgotten):
                self._was_forgotten(process)
            elif isinstance(answer, InvalidUpdate):
                self.world.log(f"{self.name} was refused: {answer}")
                process.refused += 1
                if process.refused == 3:
                    self._exit(process, "refused three times in a row", restart=True)
                self._call(
                    process,
                    lambda: self.world.server.decline(
                        self.name, process.session, current.number, current.attempt, assignment.key
                    ),
                    lambda _: self._done(process, key, 5.0),
                )
            else:
                process.refused = 0
                self._done(process, key, 1.0 if isinstance(answer, PufError) else 0.1)

        self._call(process, lambda: self.world.server.begin(self.name, header), begun)

    def _retry(self, process: Process, task: assignments.Train, key: str) -> None:
        if process.training == key:
            self._submit(process, task, key)

    def _done(self, process: Process, key: str, pause: float) -> None:
        if process.training == key:
            process.training = ""
            self.world.after(pause, self._again, process, lambda: self._poll(process))

    def _evaluate(self, process: Process, task: assignments.Evaluate) -> None:
        key = f"evaluation {task.evaluation}"
        process.training = key

        def reported(answer: Any) -> None:
            self._done(process, key, 1.0)

        def fetched(answer: Any) -> None:
            if isinstance(answer, PufError):
                self._done(process, key, 2.0)
                return
            sums = _score(self.world.scenario.seed, self.name, answer.digest, self.holdout)
            self.world.after(
                self.world.rng.uniform(0.5, 10.0),
                self._again,
                process,
                lambda: self._call(
                    process,
                    lambda: self.world.server.answer(self.name, task.evaluation, task.version, sums),
                    reported,
                ),
            )

        self._call(process, lambda: self.world.server.fetch(self.name, task.version), fetched)

    # -- the owner: puf-client --unlearn -------------------------------------------------------------------------------

    def ask(
        self, *, samples: bool = False, ids: frozenset[int] = frozenset(), late: float = 0.0, **wishes: Any
    ) -> None:
        """Writes down which samples are meant, files, follows the ticket to its end."""
        if self.owner is not None and self.owner.alive:
            return
        owner = Process()
        self.owner = owner
        self.asked += 1
        key = f"k-{self.asked}"
        options: dict[str, Any] = {"key": key, "received_at": self.world.now - late if late else None, **wishes}

        def go() -> None:
            left = sorted(self._count())
            if (samples or ids) and len(left) > 1:
                drawn = ids or self.world.rng.sample(left, self.world.rng.randint(1, len(left) - 1))
                chosen = frozenset(drawn)
                self.exclusions[key] = Exclusion(chosen)
                self.world.checker.named[self.name, key] = chosen
                options.update(scope=Scope.SAMPLES, forget_samples=len(chosen), retain_samples=len(left) - len(chosen))
            self._file(owner, RequestForm(**options))

        self._settled(owner, go)

    def _file(self, owner: Process, request: RequestForm) -> None:
        if self.world.strikes("crash_owner"):
            owner.alive = False
            self.world.log(f"{self.name}'s owner died before filing")

        def filed(answer: Any) -> None:
            known = self.exclusions.get(request.key)
            if isinstance(answer, Unavailable):
                self.world.after(5.0, self._again, owner, lambda: self._file(owner, request))
            elif isinstance(answer, PufError):
                self.world.log(f"{self.name} was refused: {answer}")
                if known is not None:
                    del self.exclusions[request.key]
                owner.alive = False
            else:
                if known is not None and answer.request.key == request.key:
                    known.ticket = answer.id
                elif known is not None:
                    del self.exclusions[request.key]
                self._follow(owner, answer.id)
                if self.world.strikes("ask_twice"):
                    self._call(owner, lambda: self.world.server.file(self.name, request), lambda _: None)

        if owner.alive:
            self._call(owner, lambda: self.world.server.file(self.name, request), filed)

    def follow(self, ticket_id: str) -> None:
        """The same command again goes on watching."""
        if self.owner is None or not self.owner.alive:
            self.owner = Process()
            self._follow(self.owner, ticket_id)

    def _follow(self, owner: Process, ticket_id: str) -> None:
        self.following = ticket_id
        measured: set[int] = set()

        def look() -> None:
            if owner.alive:
                self._call(owner, lambda: self.world.server.ticket(self.name, ticket_id), seen)

        def seen(answer: Any) -> None:
            if isinstance(answer, Unavailable):
                self.world.after(10.0, look)
                return
            if isinstance(answer, PufError):
                owner.alive = False
                return
            ticket: Ticket = answer[0]
            if ticket.state in _DONE:
                if ticket.whole_client and ticket.membership >= self.membership:
                    self.forgotten = True
                known = ticket.applied.measurements if ticket.applied else {}
                for version in ticket.versions:
                    if version not in measured and version not in known:
                        measured.add(version)
                        self._measure(owner, ticket, version)
            if ticket.state is TicketState.PENDING and self.world.strikes("withdraw"):
                for exclusion in self.exclusions.values():
                    exclusion.withdrawing = exclusion.withdrawing or exclusion.ticket == ticket_id
                # Its wish is written down here before the server hears of it; whatever comes of that, it wants them back.
                self.world.checker.taken_back(ticket)
                self._call(owner, lambda: self.world.server.withdraw(self.name, ticket_id), withdrawn)
            elif self.stands_in and ticket.state in (TicketState.PENDING, TicketState.SCHEDULED) and not answer[1]:
                self.start(only_if_no_worker=True)
            if ticket.state in _ENDED:
                owner.alive = False
                return
            if self.world.strikes("crash_owner"):
                owner.alive = False
                return
            self.world.after(self.world.rng.uniform(5.0, 30.0), look)

        def withdrawn(answer: Any) -> None:
            if not isinstance(answer, PufError):
                for exclusion in self.exclusions.values():
                    if exclusion.ticket == ticket_id:
                        exclusion.withdrawn = True

        look()

    def _measure(self, owner: Process, ticket: Ticket, version: int) -> None:
        def fetched(answer: Any) -> None:
            if isinstance(answer, PufError):
                return
            sums = _score(self.world.scenario.seed, self.name, answer.digest, 10)
            self._call(owner, lambda: self.world.server.measure(self.name, ticket.id, version, sums), lambda _: None)

        self._call(owner, lambda: self.world.server.fetch(self.name, version), fetched)


def _score(seed: int, name: str, digest: str, samples: int) -> Sums:
    """What a client measures on a model: always the same for the same two."""
    drawn = hashlib.sha256(f"{seed}|{name}|{digest}".encode()).digest()[0] / 255
    return Sums(samples=samples, loss_sum=float(samples), score_sum=samples * (0.5 + drawn / 2))
