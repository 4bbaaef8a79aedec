"""The worker of a client: it joins, trains, evaluates, dies and comes back.

It treats errors as puf_client.session.session does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from puf_server.core.state.rounds import Part
from puf_server.core.state.tickets import TicketState
from tests.sim.client_state import ClientState, Process, chosen_dose, score
from tests.sim.server import Header, Leave
from tests.sim.weights import Update, Weights


class Worker(ClientState):
    def start(self, *, rejoin: bool = False, only_if_no_worker: bool = False) -> None:
        """Starts the worker, unless it runs."""
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
        """Suspends the worker. The same process continues later."""
        process = self.worker
        if process is not None and process.alive and not process.frozen:
            self.world.log(f"{self.name} frozen for {seconds:.0f} s")
            process.frozen = True
            self.world.after(seconds, self._thaw, process)

    def leave(self) -> None:
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

    def _if_exclusions_known(self, process: Process, then: Callable[[], None]) -> None:
        """Exits if the server has a request for samples that the client does not know any more."""

        def told(answer: Any) -> None:
            if isinstance(answer, PufError):
                self.world.after(5.0, self._again, process, lambda: self._if_exclusions_known(process, then))
            elif any(
                not t.whole_client
                and (t.state is not TicketState.WITHDRAWN or t.taken_over)
                and t.request.key not in self.exclusions
                for t in answer
            ):
                self._exit(process, "forgotten samples are not known", restart=True)
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
                    self._exit(process, "another worker is alive", restart=False)
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
                    adapts=self.world.scenario.adapts,
                    rejoin=rejoin,
                    only_if_no_worker=only_if_no_worker,
                ),
                joined,
            )

        self._settled(process, lambda: self._if_exclusions_known(process, go))

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
            elif process.waiting:
                # The answer to a waiting call may be lost.
                self._poll(process)

        self._call(process, lambda: self.world.server.heartbeat(self.name, session, training), heard)

    def _poll(self, process: Process) -> None:
        """Asks for work, unless the process has some."""
        if process.training or not process.alive or process.frozen:
            return
        process.waiting = False

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
            process.waiting = True
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
        dose, scale = None, assignment.scale
        if assignment.routine == "dose":
            dose = chosen_dose(self.world.scenario.seed, self.name, base, assignment.options)
            scale *= dose.kappa
        update = Update(
            client=self.name,
            membership=assignment.membership,
            part=str(assignment.part),
            round=current.number,
            base=base,
            ids=ids,
            epochs=assignment.epochs,
            applied_scale=scale if assignment.flip == "client" else 1.0,
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
            dose=dose,
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
        if process.training == key and key in process.cache:
            self._submit(process, task, key)
        else:
            # The client joined again with other samples: it has to train again.
            self._done(process, key, 1.0)

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
            sums = score(self.world.scenario.seed, self.name, answer.digest, self.holdout)
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
