"""`Session`: a client in a federation, as an iterator over the jobs of a training loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from puf_client.api.job import Job
from puf_client.routines.context import Abandoned
from puf_client.routines.registry import begin_dose
from puf_client.session.assignment import Assignment
from puf_client.session.session import Session as Membership
from puf_client.state.directory import StateDirectory
from puf_client.transport.base import Transport
from puf_client.worker.worker import Worker
from puf_common.errors import PufError, Superseded
from puf_common.logging import get_logger
from puf_common.tracing.process import flush
from puf_common.v1 import federation_pb2 as pb

if TYPE_CHECKING:
    from typing import Self

log = get_logger("puf_client.api.session")

# What a training loop can do: ordinary descent. For a dose, the session measures before it and chooses the strength after.
ROUTINES = ("train", "dose")


class Session:
    """`for job in session:` yields jobs until the server ends the session. Made by `connect`.

    The session evaluates models, keeps forgotten samples out, records which samples were used, and declines work that a
    loop of ordinary descent cannot do. Heartbeats, retries and joining a restarted server run beside the loop. A newer
    client of the same name ends the iteration with `puf_common.errors.Superseded`.
    """

    def __init__(self, worker: Worker, membership: Membership, state: StateDirectory, transport: Transport) -> None:
        self._worker, self._membership, self._state, self._transport = worker, membership, state, transport
        self._job: Job | None = None

    @property
    def name(self) -> str:
        """The client's name."""
        return self._transport.name

    @property
    def samples(self) -> int:
        """The number of training samples that the client announced last. Forgotten samples do not count."""
        return self._membership.samples

    @property
    def forgotten(self) -> bool:
        """Whether the federation has forgotten this client. Do not start it again; the exit code for this is 10."""
        leave = self._membership.leave
        return leave is not None and leave.reason == pb.LeaveOrder.REASON_FORGOTTEN

    @property
    def end(self) -> str:
        """Why the server ended the session, in one sentence; empty before."""
        leave = self._membership.leave
        return leave.message if leave is not None else ""

    def __iter__(self) -> Iterator[Job]:
        for work in self._membership:
            if not isinstance(work, Assignment):
                self._worker.do(work, self._membership)
                continue
            self._job = self._begun(work)
            if self._job is not None:
                yield self._job
                self._job.decline("its training loop ended the job without job.submit()")
                self._job = None
        if self.forgotten:
            self._state.mark_forgotten(membership=self._membership.membership)

    def close(self, reason: str = "its training loop ended") -> None:
        """Leaves the federation's roster of running workers. The client stays a member. A job in work is declined."""
        try:
            if self._job is not None:
                self._job.decline(reason)
        except PufError as error:
            log.debug("could not decline", reason=error.message)
        finally:
            self._job = None
            self._membership.close()
            self._transport.close()
            flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PufError):
            self.close(error.message)
        else:
            self.close(f"its training loop failed: {kind.__name__}" if kind is not None else "its training loop ended")

    def _begun(self, work: Assignment) -> Job | None:
        """Returns the job of an assignment; None if the loop has nothing to do for it."""
        trainer = self._worker.trainer
        assert work.indices is not None
        try:
            inputs, context = trainer.inputs(work, work.indices), trainer.context(work)
            if work.routine != "dose":
                return Job(work, inputs, context)
            dose = begin_dose(inputs, context)
            if dose.skipped is None:
                return Job(work, inputs, context, dose)
            work.submit(inputs.model, indices=work.indices, dose=dose.skipped)
        except Abandoned:
            log.info("abandoned at the server's request", round=work.round)
        except Superseded:
            raise
        except PufError as error:
            log.error("cannot do the work", round=work.round, reason=error.message)
            work.decline(error.message[:300])
        return None
