"""The real engine and request handlers. The process can crash between any two steps and restarts from the disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from puf_common import audit_chain
from puf_common.errors import NotFound, PufError, StorageCorrupted, Unavailable
from puf_common.receipts import signed_receipt
from puf_common.tensors.chunks import ChunkView
from puf_common.tensors.manifest import MODEL
from puf_common.v1 import federation_pb2 as fed
from puf_server.aggregation.folder import FoldResult
from puf_server.aggregation.verified import DamagedFile
from puf_server.core import operations, roster, tickets
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.state import State
from puf_server.core.unlearning import receipt_content
from puf_server.engine.clock import FederationClock
from puf_server.engine.engine import Engine
from puf_server.ingest.header import UploadHeader, UploadKey
from puf_server.ingest.upload import Upload
from puf_server.rpc import messages
from puf_server.rpc.requests import Handlers
from puf_server.storage.state_store import Store
from tests.sim.disk import Crash, SimStore, file_name
from tests.sim.folder import SimFolder
from tests.sim.weights import MANIFEST, initial

if TYPE_CHECKING:
    from tests.sim.process import Process
    from tests.sim.several import View
    from tests.sim.world import World

__all__ = ["SimServer", "Stream"]

T = TypeVar("T")
_OVERFLOW = "not finite"
_RETRY_SECONDS = 0.5
_TICK_SECONDS = 10.0
# After so long the other servers take a silent one for gone.
SILENT_SECONDS = 10.0


@dataclass
class Stream:
    """An upload that a stream carries, in one server process."""

    server: SimServer
    epoch: int
    name: str
    header: UploadHeader
    upload: Upload
    # The client's process that sends it.
    sender: Process
    over: bool = False


class SimServer:
    def __init__(self, world: World, store: SimStore, view: View | None = None) -> None:
        """`view` is what one of several servers sees of the store. The first server makes the federation."""
        self.world = world
        self.store = store
        self.view = view
        self.frozen = False
        self._frozen_at = 0.0
        self.up = False
        self.epoch = 0
        self.crashes = 0
        self.waiters: dict[str, Callable[[], None]] = {}
        self._carriers: dict[UploadKey, Stream] = {}
        # All open streams: a repeated request makes a second one for the same update.
        self._streams: list[Stream] = []
        self._folding = False
        self._shown: tuple[object, ...] = ()
        if view is not None:
            view.server = self
        if store.saved is None:
            self._create()

    def _create(self) -> None:
        weights = initial()
        model = ModelVersion(
            version=0,
            round=0,
            digest=weights.digest,
            nbytes=MANIFEST.nbytes(MODEL),
            status=ModelStatus.READY,
            created_at=self.world.now,
        )
        self.store.models[file_name(0, weights.digest)] = weights
        self.store.note_model(weights)
        state = State(planned=self.store.config.plan.rounds, models={0: model})
        self.store.save(None, state.note("federation.created", self.world.now))

    # -- start and crash ----------------------------------------------------------------------------

    def start(self) -> None:
        if self.up:
            return
        self.epoch += 1
        joins = self.view is not None and self.view.joined
        self.up, self._folding, self._shown, self._carriers = True, False, (), {}
        try:
            self.world.checker.survived()
            folder = SimFolder(self.store)
            wall = FederationClock(lambda: self.world.now + self.world.skew, lambda: self.world.now)
            self.engine = Engine(cast(Store, self.view or self.store), wall, folder)
            self.handlers = Handlers(self.engine)
            self.engine.subscribe(lambda before, after: self._changed())
        except Crash as crash:
            self._die(crash)
            return
        except Unavailable:
            self._die(Crash("the disk is full at start"))
            return
        except StorageCorrupted as error:
            self._die(Crash(str(error)))
            self.store.mend()
            return
        self.world.log("server started")
        if not joins:
            self.world.clock_started(self.engine)
            self.world.checker.files(self.engine.state)
        self._changed()
        self._tick(self.epoch)
        self._exchange(self.epoch)

    def crash(self, why: str) -> None:
        if self.up:
            self._die(Crash(why))

    def _die(self, crash: Crash) -> None:
        self.world.log(f"server crashed: {crash}")
        self.up = self.frozen = False
        self.crashes += 1
        self.waiters.clear()
        if self.view is not None:
            self.world.after(SILENT_SECONDS, self.world.gone, self.view, self.view.owner)
            self.view.crashed()
        self.world.after(self.world.rng.uniform(0.5, 40.0), self.start)

    def run(self, step: Callable[[], T]) -> T:
        """Runs a step in the server process. After a crash in it, the caller sees a broken connection."""
        if not self.up or self.frozen:
            raise Unavailable("the server is down")
        try:
            return step()
        except Crash as crash:
            self._die(crash)
            raise Unavailable("the connection broke") from None

    def freeze(self, seconds: float) -> None:
        """The process is stopped for some time and wakes up with what it knew."""
        if not self.up or self.frozen:
            return
        self.world.log(f"{self.view.name if self.view else 'the server'} is stopped for {seconds:.0f} s")
        self.frozen, self._frozen_at = True, self.world.now
        self.world.after(seconds, self._wake, self.epoch)
        if self.view is not None:
            self.world.after(SILENT_SECONDS, self.world.gone, self.view, self.view.owner)

    def _wake(self, epoch: int) -> None:
        if self.epoch == epoch:
            self.frozen = False

    @property
    def silent(self) -> bool:
        """Whether the others take this server for gone."""
        return not self.up or (self.frozen and self.world.now >= self._frozen_at + SILENT_SECONDS)

    def attempt(self, work: Callable[[], object]) -> None:
        """Runs a step for which no caller waits."""
        with suppress(PufError):
            self.run(work)

    def _exchange(self, epoch: int) -> None:
        if self.view is None or not self.up or epoch != self.epoch:
            return
        if not self.frozen:
            self.view.exchange()
        self.world.after(2.0, self._exchange, epoch)

    def _tick(self, epoch: int) -> None:
        if not self.up or epoch != self.epoch:
            return
        with suppress(PufError):
            self.run(self.tick)
        self.world.after(_TICK_SECONDS, self._tick, epoch)

    def tick(self) -> None:
        """What the server does now and then. It also notices streams whose client does not answer any more."""
        self._streams = [stream for stream in self._streams if not stream.over]
        for stream in self._streams:
            if not stream.sender.alive or stream.sender.frozen:
                self.stream_broke(stream)
        self.handlers.uploads.drop_unwanted()
        self.engine.tick()

    def _changed(self) -> None:
        if not self.up or not hasattr(self, "engine"):
            return
        state = self.engine.state
        shown = (state.round, state.evaluation, state.paused, state.halted, state.stopping)
        if any(a is not b for a, b in zip(shown, self._shown, strict=False)) or not self._shown:
            self._shown = shown
            waiters, self.waiters = self.waiters, {}
            for wake in waiters.values():
                wake()
        if not self._folding and self.engine.round_to_fold() is not None:
            self._folding = True
            self.world.after(0.01, self._fold, self.epoch)

    def _fold(self, epoch: int) -> None:
        """Runs one fold at a time. The sum is on disk for some time before the commit."""
        if not self.up or epoch != self.epoch:
            return
        if self.frozen:
            self.world.after(_RETRY_SECONDS, self._fold, epoch)
            return
        current = self.engine.round_to_fold()
        if current is None:
            self._folding = False
            return
        try:
            right = self.run(self.engine.begin_fold)
            if right is None:
                self.world.after(_RETRY_SECONDS, self._fold, epoch)
                return
            # A fold changes the state where it finds a damaged update.
            result = self.run(lambda: self.engine.fold(current))
        except (FileNotFoundError, Unavailable, DamagedFile):
            self.world.after(_RETRY_SECONDS, self._fold, epoch)
            return
        if self.world.strikes("crash_in_fold"):
            self._die(Crash("summed up, not committed"))
            return
        if self.world.strikes("overflow"):
            result = FoldResult(current, failure=_OVERFLOW)
        longest = 90.0 if self.world.strikes("slow_fold") else 5.0
        self.world.after(self.world.rng.uniform(0.05, longest), self._folded, epoch, result, right)

    def _folded(self, epoch: int, result: FoldResult, right: int) -> None:
        if not self.up or epoch != self.epoch:
            return
        if self.frozen:
            self.world.after(_RETRY_SECONDS, self._folded, epoch, result, right)
            return
        if not (self.world.healing and result.failure == _OVERFLOW):
            # A fault from before healing does not happen any more: no operator would resume the federation.
            with suppress(PufError):
                self.run(lambda: self.engine.commit(result, right))
        if self.up:
            self.engine.end_fold()
        self.world.after(_RETRY_SECONDS, self._fold, epoch)

    # -- streams of clients, as the service carries them -------------------------------------------------------

    def fetch(self, name: str, version: int) -> tuple[fed.ModelHeader, bytes | None]:
        """A model and its header. The bytes are None where they arrive damaged."""
        if self.view is not None:
            self.engine.refresh()
        model = self.handlers.model_for(name, version)
        self.world.checker.served(self.engine.state, name, model)
        return self.handlers.model_header(model), self.store.payload(model)

    def begin_upload(self, name: str, header: fed.UpdateHeader, sender: Process) -> Stream | fed.SubmitUpdateReply:
        """The stream of an update, or the reply that a committed round has counted it."""
        stated = messages.update_header(header)
        upload = self.handlers.uploads.begin(name, stated)
        if upload is None:
            self.world.checker.acknowledged_again(name, stated, stated.digest.hex())
            return fed.SubmitUpdateReply(position=self.handlers.position(), duplicate=True)
        stream = Stream(self, self.epoch, name, stated, upload, sender)
        self._carriers[stated.upload_key(name)] = stream
        self._streams.append(stream)
        return stream

    def write_chunk(self, stream: Stream, at: int, data: bytes) -> None:
        self._require_open(stream)
        stream.upload.write(ChunkView(at, data))

    def finish_upload(self, stream: Stream) -> fed.SubmitUpdateReply:
        """Publishes and books an update. The process can end in between, and files can be swept."""
        self._require_open(stream)
        stream.over = True
        try:
            stream.upload.publish()
            if self.world.strikes("crash_in_upload"):
                raise Crash("spooled, not booked")
            if self.world.strikes("sweep_in_upload"):
                self.engine.delete_orphans()
            duplicate = stream.upload.book()
        except PufError:
            stream.upload.discard()
            raise
        self.world.checker.acknowledged(stream.name, stream.header, stream.header.digest.hex())
        return fed.SubmitUpdateReply(position=self.handlers.position(), duplicate=duplicate)

    def stream_broke(self, stream: Stream) -> None:
        """The server notices that a stream was cut. A later stream may continue it."""
        if self._ends(stream):
            self.handlers.uploads.keep(stream.upload)

    def stream_refused(self, stream: Stream) -> None:
        if self._ends(stream):
            stream.upload.discard()

    def find_upload(self, name: str, header: fed.UpdateHeader) -> int:
        """What the server has of an update. The client asks because its stream broke."""
        stated = messages.update_header(header)
        if (carrier := self._carriers.get(stated.upload_key(name))) is not None:
            self.stream_broke(carrier)
        return self.handlers.uploads.offset(name, stated)

    def _require_open(self, stream: Stream) -> None:
        if stream.over or not self.up or self.frozen or stream.epoch != self.epoch:
            raise Unavailable("the stream is over")

    def _ends(self, stream: Stream) -> bool:
        """Whether this ends the stream: it has not ended before, not even with its server process."""
        ends = not stream.over and self.up and stream.epoch == self.epoch
        stream.over = True
        return ends

    def receipt(self, name: str | None, ticket_id: str) -> bytes:
        """The signed receipt of a completed ticket."""
        ticket = tickets.find(self.engine.state, name, ticket_id)
        now = self.engine.clock()
        content = receipt_content.build(
            self.engine.state, self.engine.config, ticket, head=audit_chain.EMPTY, now=now, software="sim"
        )
        return signed_receipt.issue(content, self.store.key)

    def forget(self, name: str) -> None:
        """The operator's request for a client."""
        self.handlers.tickets.forget(name, "", 0.0)

    # -- the operator ----------------------------------------------------------------------------

    def pause(self) -> None:
        self.engine.call(lambda state, now: (operations.pause(state, now), None))

    def resume(self) -> None:
        self.engine.accept_clock()
        self.world.accepted = self.engine.clock() - self.world.now
        self.engine.call(lambda state, now: (operations.resume(state, now), None))

    def extend(self, rounds_more: int) -> None:
        self.engine.call(lambda state, now: (operations.extend(state, rounds_more, now), None))

    def stop(self) -> None:
        """Stops the federation. A later start continues."""
        self.engine.call(lambda state, now: (operations.stop(state, now), None))

    def readmit(self, name: str) -> None:
        if name not in self.engine.state.members:
            raise NotFound(name)
        self.engine.call(lambda state, now: (roster.readmit(state, name, now), None))
