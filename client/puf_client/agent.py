"""`puf-client run`: data, model and task of this client at work in a federation.

torch takes seconds to import; whatever can fail before it is needed fails first.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from puf_client.connection import Transport
from puf_client.dial import dial
from puf_client.display import Display
from puf_client.measure import summed
from puf_client.options import RunOptions
from puf_client.session import Session, connect
from puf_client.statedir import StateDir
from puf_client.tickets import settle
from puf_client.work import EvaluateTask, TrainTask, Work
from puf_common.errors import Forgotten, PufError, Superseded
from puf_common.exits import Exit
from puf_common.logging import get_logger
from puf_common.v1 import federation_pb2 as pb

if TYPE_CHECKING:
    from puf_client.learner import Learner

__all__ = ["Worker", "run_agent"]

log = get_logger("puf_client.agent")

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
        known = state.forgotten
        if known is not None and not options.rejoin:
            raise Forgotten(
                f"{transport.name} was forgotten by {description.title} on {_day(known['at'])}; to return, the operator "
                f"runs `puf-server clients readmit {transport.name}` and this client `puf-client run --rejoin`"
            )
        from puf_client.learner import prepare

        learner = prepare(options, description)
        log.info("device", why=learner.choice.why)
        with Display() as display:
            return _work(options, transport, description, state, learner, display)
    finally:
        if owned:
            transport.close()


def _work(
    options: RunOptions,
    transport: Transport,
    description: pb.DescribeReply,
    state: StateDir,
    learner: Learner,
    display: Display,
) -> Exit:
    worker = Worker(learner, state, transport, display)
    with connect(
        transport,
        samples=worker.count,
        holdout_samples=learner.data.holdout_samples,
        manifest=learner.manifest,
        description=description,
        plugin_version=learner.plugin_version,
        device=str(learner.choice.device),
        rejoin=options.rejoin,
    ) as session:
        state.pin_server_key(session.server_key)
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
        for work in session:
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

    def __init__(self, learner: Learner, state: StateDir, transport: Transport, display: Display) -> None:
        self._learner = learner
        self._state = state
        self._transport = transport
        self._display = display
        self._failures = 0

    def count(self) -> int:
        """Training samples left; asked before every piece of work, because requests are filed by other processes."""
        if self._state.unsettled():
            settle(self._state, self._transport)
        return len(self.current())

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
            return self._state.forget_indices(self._learner.data.ids, work.forget_request)
        return self.current()

    def _train(self, work: TrainTask, session: Session) -> None:
        indices = self.samples_of(work)
        doing = f"round {work.round}" if work.scale > 0 else f"round {work.round}, to be forgotten"
        self._display.say(f"training {doing}")

        def progress(done: int, total: int) -> None:
            session.activity = f"training {doing}, batch {done} of {total}"
            self._display.count(done, total)

        started = time.monotonic()
        result = self._learner.run(work, indices, progress)
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
        if not math.isfinite(sums.loss_sum):
            raise PufError(f"model {work.version} gives a loss of {sums.loss_sum} on the hold-out data")
        training = None
        if work.training_side and len(mine := self.current()):
            training = summed(self._learner.look_at_samples(work.payload, mine))
        work.report(
            sums.samples,
            sums.loss_sum,
            sums.score_sum,
            confidences=sums.confidences,
            training=training if training is not None and math.isfinite(training.loss_sum) else None,
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
