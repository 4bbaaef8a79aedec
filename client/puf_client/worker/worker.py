"""`puf-client run`: data, model and task of this client at work in a federation.

torch takes seconds to import; whatever can fail before it is needed fails first.
"""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from puf_client.cli.options import RunOptions
from puf_client.session.assignment import BESIDE_THE_REST, EvaluateTask, TrainTask, Work
from puf_client.session.session import Session, connect
from puf_client.state.directory import StateDir
from puf_client.state.local_models import WORD, LastModels
from puf_client.state.usage import Ledger
from puf_client.transport.dial import dial
from puf_client.transport.grpc import Transport
from puf_client.unlearning.measure import summed
from puf_client.unlearning.reconcile import look_back
from puf_client.unlearning.tickets import settle
from puf_client.worker.display import Display
from puf_client.worker.lease import leased
from puf_common.config.exit_codes import Exit
from puf_common.errors import Forgotten, NotFound, NotYours, PufError, Superseded
from puf_common.logging import get_logger
from puf_common.tensors.manifest import MODEL
from puf_common.v1 import federation_pb2 as pb

if TYPE_CHECKING:
    from puf_client.worker.trainer import Learner

__all__ = ["Worker", "run_agent"]

log = get_logger("puf_client.worker.worker")

# A client that fails again and again should be looked at, not go on.
_FAILURES_IN_A_ROW = 3


def run_agent(options: RunOptions, transport: Transport | None = None) -> Exit:
    """Works until the federation ends, forgets this client, or the process is told to stop."""
    owned = transport is None
    transport = transport or dial(options, server=options.server, name=options.name, patience=options.patience)
    _leave_on_sigterm()
    try:
        description = transport.describe()
        state = StateDir.of(description.federation_id, transport.name, options.state)
        state.check_server_key(description.server_key)
        reopened = _looked_back(transport, state)
        known = state.forgotten
        if known is not None and reopened:
            raise Forgotten(
                f"{transport.name} was forgotten by {description.title}, whose server was restored from an older backup "
                "and knows it again: run `puf-client --unlearn` with this client's data to have it forgotten again"
            )
        if known is not None and not options.rejoin:
            raise Forgotten(
                f"{transport.name} was forgotten by {description.title} on {_day(known['at'])}; to return, the operator "
                f"runs `puf-server clients readmit {transport.name}` and this client `puf-client run --rejoin`"
            )
        options = leased(options, transport, state, anew=options.rejoin)
        from puf_client.worker.trainer import prepare

        learner = prepare(options, description)
        log.info("device", why=learner.choice.why)
        with Display() as display:
            return _work(options, transport, description, state, learner, display)
    finally:
        if owned:
            transport.close()


def _looked_back(transport: Transport, state: StateDir) -> list[str]:
    """Whoever may not ask any more has nothing to show either."""
    try:
        return look_back(transport, state)
    except (NotYours, NotFound) as error:
        log.debug("not looked back", reason=error.message)
        return []


def _work(
    options: RunOptions,
    transport: Transport,
    description: pb.DescribeReply,
    state: StateDir,
    learner: Learner,
    display: Display,
) -> Exit:
    worker = Worker(learner, state, transport, display, distiller=options.distiller)
    with connect(
        transport,
        samples=worker.count,
        # Who brings data without labels cannot say how right a model is.
        holdout_samples=0 if options.distiller else learner.data.holdout_samples,
        unlabeled_samples=worker.unlabeled,
        manifest=learner.manifest,
        description=description,
        plugin_version=learner.plugin_version,
        device=str(learner.choice.device),
        rejoin=options.rejoin,
    ) as session:
        state.pin_server_key(session.server_key)
        if WORD not in session.remembers:
            LastModels(state).forget()
        if options.rejoin:
            state.clear_forgotten()
        log.info(
            "joined",
            federation=description.title,
            client=transport.name,
            membership=session.membership,
            samples=session.samples,
            holdout=learner.data.holdout_samples,
            **({"the_server_keeps": list(session.remembers)} if session.remembers else {}),
        )
        display.say("waiting for work")
        joined = session.joins
        for work in session:
            if session.joins != joined:
                # Another process serves, maybe of an older state.
                _looked_back(transport, state)
                joined = session.joins
            worker.do(work, session)
            display.say("waiting for work")
        return _farewell(session, state)


def _farewell(session: Session, state: StateDir) -> Exit:
    if session.leave is None or session.leave.reason == pb.LeaveOrder.REASON_STOPPED:
        return Exit.OK
    if session.leave.reason == pb.LeaveOrder.REASON_FORGOTTEN:
        state.mark_forgotten(membership=session.membership)
        log.info("this client was forgotten; it must not be started again", message=session.leave.message)
        return Exit.FORGOTTEN
    log.error("taken off the roster", message=session.leave.message)
    return Exit.REFUSED


class Worker:
    """Does one piece of work after the other, on those samples that are not forgotten."""

    def __init__(
        self, learner: Learner, state: StateDir, transport: Transport, display: Display, *, distiller: bool = False
    ) -> None:
        self._distiller = distiller
        self._last_models = LastModels(state)
        self._learner = learner
        self._state = state
        self._transport = transport
        self._display = display
        self._ledger = Ledger(state)
        self._failures = 0

    def count(self) -> int:
        """Training samples left; asked before every piece of work, because requests are filed by other processes."""
        if self._state.unsettled():
            settle(self._state, self._transport)
        return 0 if self._distiller else len(self.current())

    @property
    def unlabeled(self) -> int:
        """Samples for distillation, of a client that brings nothing else."""
        return len(self.current()) if self._distiller else 0

    def current(self) -> NDArray[np.intp]:
        return np.flatnonzero(~self._state.excluded(self._learner.data.ids))

    def do(self, work: Work, session: Session) -> None:
        """Trains or measures, and hands in. What cannot be done is declined, so that nobody waits for it."""
        from puf_client.routines import Abandoned

        try:
            if isinstance(work, TrainTask):
                self._train(work, session)
            else:
                self._evaluate(work)
        except Abandoned:
            log.info("abandoned, as the server asked", activity=session.activity)
        except Exception as error:
            self._failed(work, error)
        else:
            self._failures = 0

    def samples_of(self, work: TrainTask) -> NDArray[np.intp]:
        """Everything that is not forgotten, or what one request names."""
        if self._state.unsettled():
            settle(self._state, self._transport)
        if work.part == "forget":
            named = self._state.forget_indices(self._learner.data.ids, work.forget_request)
            return np.union1d(named, self.current()) if work.routine in BESIDE_THE_REST else named
        return self.current()

    def _train(self, work: TrainTask, session: Session) -> None:
        indices = self.samples_of(work)
        forget = None
        if work.part == "forget" and work.routine in BESIDE_THE_REST:
            forget = ~np.isin(indices, self.current())
        if work.routine == "ascent":
            # The second model of this routine is the client's own.
            number, nbytes = int(work.options.get("last_round", 0)), work.manifest.nbytes(MODEL)
            own = self._last_models.of_round(work.work.key.membership, number, nbytes)
            work = replace(work, aux_payload=memoryview(own))
        doing = f"round {work.round}, to be forgotten" if work.unlearns else f"round {work.round}"
        self._display.say(f"training {doing}")

        def progress(done: int, total: int) -> None:
            session.activity = f"training {doing}, batch {done} of {total}"
            self._display.count(done, total)

        started = time.monotonic()
        result = self._learner.run(work, indices, progress, forget)
        self._ledger.note(self._learner.data.ids, indices, number=work.round, unlearning=work.unlearns)
        if WORD in session.remembers and work.routine == "train" and not work.ticket_id:
            self._last_models.keep(work.work.key.membership, work.round, self._learner.payload())
        self._display.say(f"sending the update of {doing}")
        taken = work.submit(
            self._learner.model,
            samples=len(indices),
            train_loss=result.loss,
            samples_processed=result.samples_processed,
        )
        log.info(
            "trained",
            round=work.round,
            part=work.part,
            samples=len(indices),
            loss=round(result.loss, 4),
            seconds=round(time.monotonic() - started, 2),
            taken=taken,
            **({"scale": work.scale, "ticket": work.ticket_id} if work.ticket_id else {}),
        )

    def _evaluate(self, work: EvaluateTask) -> None:
        self._display.say(f"measuring model {work.version}")
        sums = summed(self._learner.look_at_holdout(work.payload))
        training = None
        if work.training_side and len(mine := self.current()):
            training = summed(self._learner.look_at_samples(work.payload, mine))
        work.report(
            sums.samples,
            sums.loss_sum,
            sums.score_sum,
            confidences=sums.confidences,
            training=training,
        )
        log.info(
            "measured",
            version=work.version,
            score=round(sums.score_sum / sums.samples, 4),
            loss=round(sums.loss_sum / sums.samples, 4),
        )

    def _failed(self, work: Work, error: Exception) -> None:
        if isinstance(error, Superseded):
            raise error
        message = error.message if isinstance(error, PufError) else f"{type(error).__name__}: {error}"
        self._failures += 1
        if isinstance(work, TrainTask):
            work.decline(message[:300])
        log.error("work failed", reason=message, in_a_row=self._failures)
        # A failure that has a message of ours may pass; one in code of the user's own will come again.
        if not isinstance(error, PufError) or self._failures >= _FAILURES_IN_A_ROW:
            raise error


def _leave_on_sigterm() -> None:
    """Whoever is told to end says goodbye first, so that no round waits for it."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(int(Exit.OK))

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)


def _day(at: object) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(float(str(at))))
