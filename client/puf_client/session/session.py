"""A worker's session in a federation: an iterator over work that survives lost connections and server restarts.

The session stores the last models it fetched and its last updates before scaling. When the server repeats an assignment,
because an attempt was abandoned or an answer was lost, the session answers it without training again: `training_id`
identifies the training, and the scale is applied when the update is sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from puf_client.session.assignment import Assignment, EvaluationRequest, Work
from puf_client.session.recent import FetchedModel, Recent
from puf_client.session.reconcile import reconciled
from puf_client.session.rounding import Rounding
from puf_client.session.samples import CannotDo, LoopSupport
from puf_client.session.settings import Running
from puf_client.session.traces import WorkTraces
from puf_client.session.update import LocalUpdate, upload_of
from puf_client.transport.base import HeldModel, Transport
from puf_common.errors import (
    Conflict,
    Forgotten,
    Mismatch,
    NotFound,
    NotNow,
    PufError,
    Superseded,
    TransferCorrupted,
    Unavailable,
    UnknownSession,
)
from puf_common.logging import get_logger
from puf_common.receipts.signing_key import fingerprint
from puf_common.tensors.digests import DigestKind, digest_kind
from puf_common.tensors.manifest import MODEL, Manifest
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tensors_pb2, tickets_pb2
from puf_common.version import VERSION

if TYPE_CHECKING:
    from typing import Self

log = get_logger("puf_client.session.session")

Answer = TypeVar("Answer")

_REFUSED_PAUSE = 1.0
_EMPTY_PAUSE = 0.05


class Session:
    """`for work in session:` yields work until the server ends the session. `step()` makes one request.

    `leave` is the server's order to leave, None before. A newer worker of the same name ends the iteration with
    `Superseded`.
    """

    def __init__(
        self,
        transport: Transport,
        description: pb.DescribeReply,
        manifest: Manifest,
        request: pb.JoinRequest,
        support: LoopSupport,
        running: Running,
        *,
        owns_transport: bool,
    ) -> None:
        self._machine = machine = running.machine
        self.transport = transport
        self.description = description
        self.manifest = manifest
        self.position = description.position
        self.leave: pb.LeaveOrder | None = None
        # What the worker is doing. Heartbeats send it; operators see it.
        self.activity = "waiting"
        self.heartbeat_seconds = 5.0
        self.membership = 0
        # The server's key, which signs receipts.
        self.server_key = b""
        # What the server stores about clients because the federation's method needs it.
        self.server_stores: tuple[str, ...] = ()
        self._request = request
        self._support = support
        self._request.instance = secrets.token_hex(16)
        self._request.client_version = VERSION
        self._request.samples = support.count()
        self._request.manifest_fingerprint = self.manifest.fingerprint
        self._request.recipe_fingerprint = description.recipe.fingerprint
        self._wait_seconds = running.wait_seconds
        self._owns_transport = owns_transport
        self._id = ""
        self._digest_kind: DigestKind = "sha256"
        self._renewing = machine.lock()
        self._failure: PufError | None = None
        self._current: Assignment | None = None
        self._recent = Recent()
        self._traces = WorkTraces(description.federation_id, transport.name)
        self._pause = 0.0
        self._closing = machine.event()
        self._join()
        if support.samples is not None:
            support.samples.state.pin_server_key(self.server_key)
        # These apply to the first join only: joining again must not request a new membership or yield to itself.
        self._request.rejoin = self._request.only_if_no_worker = False
        self._request.added_samples = 0
        self._heartbeats = machine.start(self._beat_until_closed, "puf-heartbeat") if running.heartbeats else None

    @property
    def samples(self) -> int:
        """The number of training samples that the client announced last."""
        return self._request.samples

    def __iter__(self) -> Iterator[Work]:
        while self.leave is None and not self._closing.is_set():
            asked = self._machine.monotonic()
            work = self.step(self._wait_seconds)
            if work is not None:
                yield work
            elif self._pause:
                self._closing.wait(self._pause)
            elif self._machine.monotonic() - asked < _EMPTY_PAUSE:
                # The transport or the server returned without waiting.
                self._closing.wait(_EMPTY_PAUSE)

    def step(self, timeout: float = 0.0) -> Work | None:
        """Returns the next work, or None after `timeout` seconds. Submits repeated assignments by itself."""
        self._current, self._pause, self.activity = None, 0.0, "waiting"
        if self.leave is None:
            self.announce(self._support.count())
        if self.leave is not None:
            return None
        reply = self._attached(
            lambda: self.transport.wait_for_work(pb.WaitForWorkRequest(session=self._id, timeout_seconds=timeout))
        )
        if reply is None:
            return None
        self.position = reply.position
        kind = reply.WhichOneof("work")
        if kind == "leave":
            self.leave = reply.leave
            reason = pb.LeaveOrder.Reason.Name(reply.leave.reason).removeprefix("REASON_").lower()
            log.info("the server ends the session", reason=reason, message=reply.leave.message)
            return None
        try:
            if kind == "train":
                return self._train(reply.train)
            return self._evaluate(reply.evaluate) if kind == "evaluate" else None
        except NotFound as error:
            # The round ended between the answer and the download, and its model was deleted.
            log.info("the work is no longer available", reason=error.message)
            self._pause = _REFUSED_PAUSE
            return None

    def announce(self, samples: int) -> None:
        """Announces the number of training samples if it has changed, by joining again as the same worker."""
        if samples != self._request.samples:
            log.info("announcing the new number of samples", before=self._request.samples, now=samples)
            # The server will not repeat assignments on the old data. It may have been restored since the last call.
            self._recent.outdate()
            with self._renewing:
                self._request.samples = samples
                self._attached(self._join)

    def fetch(self, version: int) -> memoryview:
        """Returns the bytes of a model, read-only. Keeps the last two models in memory."""
        return self._fetched(version).payload

    def _fetched(self, version: int) -> FetchedModel:
        def fetch() -> FetchedModel:
            newest = self._recent.newest_model()
            held = HeldModel(newest[0], newest[1].digest, newest[1].payload) if newest is not None else None
            with self._traces.transfer("client.download") as note:
                header, payload = self.transport.fetch_model(version, held)
                note(bytes=len(payload), **{"model.digest": header.digest.hex()})
            self.manifest.require(header.manifest_fingerprint, f"model {version}")
            if header.version != version or len(payload) != self.manifest.nbytes(MODEL):
                raise TransferCorrupted(
                    f"requested model {version}, received {len(payload)} bytes of model {header.version}"
                )
            return FetchedModel(memoryview(payload).toreadonly(), header.digest)

        return self._recent.model(version, fetch)

    def drop_models(self) -> None:
        self._recent.drop_models()

    def drop_updates(self) -> None:
        """Frees the last updates. A repeated assignment is then trained again, with the same result."""
        self._recent.drop_updates()

    def beat(self) -> None:
        """Sends one heartbeat. A thread does this regularly, unless `heartbeats=False`."""
        assignment = self._current
        training = assignment.message.training_id if assignment is not None else ""
        session = self._id
        try:
            reply = self.transport.heartbeat(
                pb.HeartbeatRequest(session=session, activity=self.activity, training_id=training)
            )
        except UnknownSession:
            self._renew(session)
            return
        except Superseded as error:
            self._failure = error
            reply = pb.HeartbeatReply(abandon_training=True)
        if reply.abandon_training and assignment is not None:
            assignment.abandoned.set()

    def close(self) -> None:
        """Leaves: the client stays a member, and rounds do not wait for it. A stopping server waits for this call."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._heartbeats is not None:
            self._heartbeats.join(timeout=1.0)
        try:
            if self._failure is None:
                self.transport.leave(pb.LeaveRequest(session=self._id))
        except PufError as error:
            log.debug("could not leave", reason=error.message)
        finally:
            if self._owns_transport:
                self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _train(self, work: pb.TrainWork) -> Assignment | None:
        refusal = self._support.refusal(work)
        if refusal is not None:
            self._decline(work, refusal, for_good=True)
            return None
        try:
            indices = self._support.samples.assigned(work) if self._support.samples is not None else None
        except CannotDo as error:
            self._decline(work, str(error), for_good=True)
            return None
        known = self._recent.update(work.training_id)
        if known is not None and known.is_of(indices):
            log.info("submitting again without training", round=work.key.round, attempt=work.key.attempt)
            self._deliver(work, known)
            return None
        self._traces.received(work.key.round, work.ticket_id)
        base = self._fetched(work.base_version)
        self._current = Assignment(
            message=work,
            client=self.transport.name,
            recipe=self.description.recipe,
            manifest=self.manifest,
            payload=base.payload,
            base_digest=base.digest,
            announced=self.samples,
            deliver=self._deliver,
            refuse=self._decline,
            aux_payload=self.fetch(work.aux_version) if work.HasField("aux_version") else None,
            indices=indices,
        )
        self.activity = f"training round {work.key.round}"
        self._traces.begin()
        return self._current

    def _evaluate(self, work: pb.EvaluateWork) -> EvaluationRequest:
        self.activity = f"evaluating model {work.version}"
        self._traces.received(self.position.round)
        payload = self.fetch(work.version)
        self._traces.begin()
        return EvaluationRequest(work, self.manifest, payload, self._answer)

    def _deliver(self, work: pb.TrainWork, update: LocalUpdate) -> bool:
        self._traces.end("client.train", update.base_digest)
        self._recent.add_update(work.training_id, update)
        self.activity = f"sending the update of round {work.key.round}"
        encoding = self.description.update_encoding
        known = self._support.samples
        rounding = None
        if encoding == tensors_pb2.ENCODING_I8:
            state = known.state if known is not None else None
            rounding = Rounding.of(work, self.transport.name, self.description.recipe.seed, state)
        header, sent = upload_of(
            work, update, self.manifest, encoding=encoding, digest_kind=self._digest_kind, rounding=rounding
        )
        self._support.note(work, update, header)
        with self._traces.transfer("client.upload") as note:
            note(bytes=len(sent))
            return self._wanted(lambda: self.transport.submit_update(header, sent), f"update of round {work.key.round}")

    def _decline(self, work: pb.TrainWork, reason: str, *, for_good: bool = False) -> None:
        log.warning("declining work", round=work.key.round, ticket=work.ticket_id, reason=reason)
        request = pb.DeclineWorkRequest(key=work.key, reason=reason, session=self._id, for_good=for_good)
        self._wanted(lambda: self.transport.decline_work(request), f"declining round {work.key.round}")

    def _answer(
        self, work: pb.EvaluateWork, holdout: tickets_pb2.EvaluationSums, training: tickets_pb2.EvaluationSums | None
    ) -> bool:
        self._traces.end("client.evaluate")
        request = pb.ReportEvaluationRequest(
            evaluation=work.evaluation, version=work.version, holdout=holdout, training=training
        )
        return self._wanted(lambda: self.transport.report_evaluation(request), f"evaluation of model {work.version}")

    def _wanted(
        self, call: Callable[[], pb.SubmitUpdateReply | pb.DeclineWorkReply | pb.ReportEvaluationReply], what: str
    ) -> bool:
        """Sends a result and returns whether the server wanted it. A late or repeated result is not an error."""
        try:
            reply = call()
        except (Superseded, Mismatch):
            raise
        except Conflict as error:
            log.info("already submitted", what=what, reason=error.message)
            return False
        except (NotNow, NotFound) as error:
            log.info("no longer wanted", what=what, reason=error.message)
            self._pause = _REFUSED_PAUSE
            return False
        except Forgotten as error:
            self._forgotten(error)
            return False
        finally:
            self._current = None
        self.position = reply.position
        return True

    def _attached(self, call: Callable[[], Answer]) -> Answer | None:
        """Runs a call of this session. Joins again if the server no longer knows the session."""
        while True:
            if self._failure is not None:
                raise self._failure
            session = self._id
            try:
                return call()
            except UnknownSession:
                self._renew(session)
            except Superseded as error:
                self._failure = error
                raise
            except Forgotten as error:
                self._forgotten(error)
                return None

    def _renew(self, stale: str) -> None:
        with self._renewing:
            if self._id == stale and not self._closing.is_set():
                log.info("the server does not know this session; joining again")
                self._recent.outdate()
                if self._current is not None:
                    self._current.abandoned.set()
                if (samples := self._support.samples) is not None:
                    reconciled(self.transport, samples.state)  # A restored server may know other requests.
                self._join()

    def _join(self) -> None:
        try:
            reply = self.transport.join(self._request)
        except Mismatch:
            # Another process may have filed a request for samples since they were counted.
            samples = self._support.count()
            if samples == self._request.samples:
                raise
            self._request.samples = samples
            reply = self.transport.join(self._request)
        if self.server_key and reply.server_key != self.server_key:
            raise Mismatch(
                f"the server's key has changed from {fingerprint(self.server_key)} to "
                f"{fingerprint(reply.server_key) or 'none'}: this is another server"
            )
        self.server_key = reply.server_key
        if self.membership and reply.membership != self.membership:
            self._recent.drop_updates()
        self.server_stores = tuple(reply.remembers)
        self._id = reply.session
        self._digest_kind = next(filter(None, map(digest_kind, reply.digest_kinds)), "sha256")
        self.membership = reply.membership
        self.position = reply.position
        self.heartbeat_seconds = reply.heartbeat_seconds or self.heartbeat_seconds

    def _forgotten(self, error: Forgotten) -> None:
        self.leave = pb.LeaveOrder(reason=pb.LeaveOrder.REASON_FORGOTTEN, message=error.message)
        if self._current is not None:
            self._current.abandoned.set()

    def _beat_until_closed(self) -> None:
        while not self._closing.wait(self.heartbeat_seconds):
            if self.leave is not None or self._failure is not None:
                return
            try:
                self.beat()
            except Unavailable:
                # The next heartbeat is the next attempt. The main thread reports the outage.
                continue
            except PufError as error:
                # Usually the client was forgotten. The main thread gets the same error and reports it.
                log.debug("heartbeat refused", reason=error.message)
