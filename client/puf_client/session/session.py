"""A worker's stay in a federation: an iterator over work that outlives lost connections and restarted servers.

The session remembers the last models it fetched and the last updates before scaling. Work that comes again, because an
attempt was abandoned or an answer was lost, is therefore answered without training again: `training_id` names what was
trained, the scale is applied on the way out.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, TypeVar

from puf_client.session.assignment import EvaluateTask, Flag, Trained, TrainTask, Work, restricted
from puf_client.transport.grpc import GrpcTransport, Transport
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
    UsageError,
)
from puf_common.logging import get_logger
from puf_common.receipts.signing import fingerprint
from puf_common.tensors.chunks import Payload
from puf_common.tensors.digests import DigestKind, digest, digest_kind, to_pb
from puf_common.tensors.encodings import compact, expand
from puf_common.tensors.manifest import MODEL, Manifest
from puf_common.tensors.scaling import scale_update
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tensors_pb2, tickets_pb2

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from puf_common.network.tls import ClientTls

__all__ = ["Session", "connect"]

log = get_logger("puf_client.session.session")

Answer = TypeVar("Answer")

_MODELS_KEPT = 2
# Both parts of a sample request.
_UPDATES_KEPT = 2
_REFUSED_PAUSE = 1.0
_EMPTY_PAUSE = 0.05


def connect(
    server: str | Transport,
    *,
    samples: int | Callable[[], int],
    name: str = "",
    holdout_samples: int = 0,
    unlabeled_samples: int = 0,
    manifest: Manifest | None = None,
    description: pb.DescribeReply | None = None,
    plugin_version: str = "",
    device: str = "cpu",
    rejoin: bool = False,
    only_if_no_worker: bool = False,
    heartbeats: bool = True,
    wait_seconds: float = 20.0,
    patience: float = 30.0,
    tls: ClientTls | None = None,
    token: Callable[[], str] | None = None,
) -> Session:
    """Joins a federation as a worker. `server` is HOST:PORT or any transport; `manifest` is that of the local model.

    `samples` is the number of training samples, or a function that is asked for it before every piece of work;
    `unlabeled_samples` is for a client that distills on public data and does not train. Without a manifest the caller
    vouches for building the federation's own. Raises before joining when they differ.
    """
    owned = isinstance(server, str)
    if isinstance(server, str):
        if not name:
            raise UsageError("a client needs a name")
        server = GrpcTransport(server, name, tls=tls, token=token, patience=patience)
    try:
        return Session(
            server,
            description or server.describe(),
            manifest,
            pb.JoinRequest(
                instance=secrets.token_hex(16),
                holdout_samples=holdout_samples,
                unlabeled_samples=unlabeled_samples,
                plugin_version=plugin_version,
                client_version=_own_version(),
                device=device,
                rejoin=rejoin,
                only_if_no_worker=only_if_no_worker,
            ),
            count=samples if callable(samples) else lambda: samples,
            heartbeats=heartbeats,
            wait_seconds=wait_seconds,
            owns_transport=owned,
        )
    except BaseException:
        if owned:
            server.close()
        raise


class Session:
    """`for work in session:` trains until the server says goodbye; `step()` asks once, for loops of one's own.

    `leave` is the server's goodbye, None before. A newer worker of the same name ends the iteration with `Superseded`.
    """

    def __init__(
        self,
        transport: Transport,
        description: pb.DescribeReply,
        manifest: Manifest | None,
        request: pb.JoinRequest,
        *,
        count: Callable[[], int],
        heartbeats: bool,
        wait_seconds: float,
        owns_transport: bool,
    ) -> None:
        self.transport = transport
        self.description = description
        self.manifest = Manifest.from_pb(description.manifest)
        if manifest is not None:
            self.manifest.require(manifest.fingerprint, "the local model")
        self.position = description.position
        self.leave: pb.LeaveOrder | None = None
        # What the worker is doing, for the operator's eyes; travels with heartbeats.
        self.activity = "waiting"
        # Seconds that heartbeats, if anybody sends them, may lie apart.
        self.heartbeat_seconds = 5.0
        self.membership = 0
        # How often it joined: grows when the server did not know the session any more.
        self.joins = 0
        # Signs receipts; worth pinning.
        self.server_key = b""
        # What is kept about clients because the federation's method needs it.
        self.remembers: tuple[str, ...] = ()
        self._request = request
        self._count = count
        self._request.samples = count()
        self._request.manifest_fingerprint = self.manifest.fingerprint
        self._request.recipe_fingerprint = description.recipe.fingerprint
        self._wait_seconds = wait_seconds
        self._owns_transport = owns_transport
        self._id = ""
        self._digest_kind: DigestKind = "sha256"
        self._renewing = threading.RLock()
        self._failure: PufError | None = None
        self._current: TrainTask | None = None
        self._models: OrderedDict[int, Payload] = OrderedDict()
        self._trained: OrderedDict[str, Trained] = OrderedDict()
        self._pause = 0.0
        self._closing = threading.Event()
        self._join()
        # A new membership was asked for once; re-attaching must not ask again, nor step back for itself.
        self._request.rejoin = self._request.only_if_no_worker = False
        self._heart = threading.Thread(target=self._beat_until_closed, name="puf-heartbeat", daemon=True)
        if heartbeats:
            self._heart.start()

    @property
    def name(self) -> str:
        return self.transport.name

    @property
    def samples(self) -> int:
        """The training samples that were announced."""
        return self._request.samples

    def __iter__(self) -> Iterator[Work]:
        while self.leave is None and not self._closing.is_set():
            asked = time.monotonic()
            work = self.step(self._wait_seconds)
            if work is not None:
                yield work
            elif self._pause:
                self._closing.wait(self._pause)
            elif time.monotonic() - asked < _EMPTY_PAUSE:
                # Not every transport waits, and not every server is polite.
                self._closing.wait(_EMPTY_PAUSE)

    def step(self, timeout: float = 0.0) -> Work | None:
        """The next piece of work, if there is one within `timeout` seconds. Answers by itself what it has trained."""
        self._current, self._pause, self.activity = None, 0.0, "waiting"
        if self.leave is None:
            self.announce(self._count())
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
            log.info("told to leave", reason=_reason(reply.leave), message=reply.leave.message)
            return None
        try:
            if kind == "train":
                return self._train(reply.train)
            return self._evaluate(reply.evaluate) if kind == "evaluate" else None
        except NotFound as error:
            # The round ended between the answer and the download, and its model went with it.
            log.info("the work is gone", reason=error.message)
            self._pause = _REFUSED_PAUSE
            return None

    def announce(self, samples: int) -> None:
        """States the number of training samples, when it has changed, by joining again as the same worker."""
        if samples != self._request.samples:
            log.info("announcing a new number of samples", before=self._request.samples, now=samples)
            # Other data: what was trained before belongs to work that will not come again.
            self._trained.clear()
            with self._renewing:
                self._request.samples = samples
                self._attached(self._join)

    def fetch(self, version: int) -> memoryview:
        """A model's bytes, from memory where they were fetched before."""
        if version not in self._models:
            header, payload = self.transport.fetch_model(version)
            self.manifest.require(header.manifest_fingerprint, f"model {version}")
            if header.version != version or len(payload) != self.manifest.nbytes(MODEL):
                raise TransferCorrupted(
                    f"asked for model {version}, got {len(payload)} bytes of model {header.version}"
                )
            self._models[version] = payload
            while len(self._models) > _MODELS_KEPT:
                self._models.popitem(last=False)
        self._models.move_to_end(version)
        return memoryview(self._models[version]).toreadonly()

    def drop_models(self) -> None:
        """Gives back the memory of fetched models, where waiting is long and memory short."""
        self._models.clear()

    def beat(self) -> None:
        """One heartbeat; the thread sends them by itself unless it was switched off."""
        task = self._current
        training = task.work.training_id if task is not None else ""
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
        if reply.abandon_training and task is not None:
            task.abandoned.set()

    def close(self) -> None:
        """Says goodbye: the client stays a member and is not waited for; a server that stops waits for these words."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._heart.is_alive():
            self._heart.join(timeout=1.0)
        try:
            if self._failure is None:
                self.transport.leave(pb.LeaveRequest(session=self._id))
        except PufError as error:
            log.debug("could not say goodbye", reason=error.message)
        finally:
            if self._owns_transport:
                self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _train(self, work: pb.TrainWork) -> TrainTask | None:
        known = self._trained.get(work.training_id) if work.training_id else None
        if known is not None:
            log.info("submitting again without training", round=work.key.round, attempt=work.key.attempt)
            self._deliver(work, known)
            return None
        self._current = TrainTask(
            work=work,
            client=self.name,
            recipe=self.description.recipe,
            manifest=self.manifest,
            payload=self.fetch(work.base_version),
            announced=self.samples,
            deliver=self._deliver,
            refuse=self._decline,
            abandoned=Flag(),
            aux_payload=self.fetch(work.aux_version) if work.HasField("aux_version") else None,
        )
        self.activity = f"training round {work.key.round}"
        return self._current

    def _evaluate(self, work: pb.EvaluateWork) -> EvaluateTask:
        self.activity = f"evaluating model {work.version}"
        return EvaluateTask(work, self.manifest, self.fetch(work.version), self._answer)

    def _deliver(self, work: pb.TrainWork, trained: Trained) -> bool:
        if work.training_id:
            self._trained[work.training_id] = trained
            while len(self._trained) > _UPDATES_KEPT:
                self._trained.popitem(last=False)
        self.activity = f"sending the update of round {work.key.round}"
        scale = 1.0 if work.flip == tickets_pb2.FLIP_SERVER else work.scale
        layout = restricted(self.manifest, work.outputs)
        payload = trained.payload
        if scale != 1.0:
            payload = bytearray(payload)
            scale_update(layout, payload, scale)
        encoding = self.description.update_encoding
        wire = payload
        if encoding != tensors_pb2.ENCODING_UNSPECIFIED:
            name = tensors_pb2.Encoding.Name(encoding).removeprefix("ENCODING_").lower()
            wire = compact(layout, payload, name)
            payload = expand(layout, wire, name)
        header = pb.UpdateHeader(
            key=work.key,
            base_version=work.base_version,
            samples=trained.samples,
            applied_scale=scale,
            byte_length=len(payload),
            digest=digest(payload, self._digest_kind),
            digest_kind=to_pb(self._digest_kind),
            manifest_fingerprint=self.manifest.fingerprint,
            train_loss=trained.train_loss,
            samples_processed=trained.samples_processed,
            encoding=encoding,
        )
        return self._wanted(lambda: self.transport.submit_update(header, wire), f"update of round {header.key.round}")

    def _decline(self, work: pb.TrainWork, reason: str) -> None:
        request = pb.DeclineWorkRequest(key=work.key, reason=reason, session=self._id)
        self._wanted(lambda: self.transport.decline_work(request), f"declining round {work.key.round}")

    def _answer(
        self,
        work: pb.EvaluateWork,
        holdout: tickets_pb2.EvaluationSums,
        training: tickets_pb2.EvaluationSums | None,
    ) -> bool:
        request = pb.ReportEvaluationRequest(
            evaluation=work.evaluation, version=work.version, holdout=holdout, training=training
        )
        return self._wanted(lambda: self.transport.report_evaluation(request), f"evaluation of model {work.version}")

    def _wanted(
        self,
        call: Callable[[], pb.SubmitUpdateReply | pb.DeclineWorkReply | pb.ReportEvaluationReply],
        what: str,
    ) -> bool:
        """Hands something in. That it came too late, or twice, is the course of things and not an error."""
        try:
            reply = call()
        except (Superseded, Mismatch):
            raise
        except Conflict as error:
            log.info("done before", what=what, reason=error.message)
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
        """Runs a call of this session; joins again when the server does not know it any more."""
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
                self._join()

    def _join(self) -> None:
        reply = self.transport.join(self._request)
        if self.server_key and reply.server_key != self.server_key:
            raise Mismatch(
                f"the server's key has changed from {fingerprint(self.server_key)} to "
                f"{fingerprint(reply.server_key) or 'none'}: this is another server"
            )
        self.server_key = reply.server_key
        if self.membership and reply.membership != self.membership:
            self._trained.clear()
        self.remembers = tuple(reply.remembers)
        self._id = reply.session
        self._digest_kind = next(filter(None, map(digest_kind, reply.digest_kinds)), "sha256")
        self.joins += 1
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
                # The next beat is the next attempt; the main thread reports the outage.
                continue
            except PufError as error:
                # Forgotten, mostly: the main thread learns of it by its own call and says so.
                log.debug("heartbeat refused", reason=error.message)


def _reason(order: pb.LeaveOrder) -> str:
    return pb.LeaveOrder.Reason.Name(order.reason).removeprefix("REASON_").lower()


def _own_version() -> str:
    try:
        return version("puf")
    except PackageNotFoundError:
        return "unknown"
