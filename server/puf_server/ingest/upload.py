"""One update from its header to its acknowledgement."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from puf_common.errors import Unavailable
from puf_common.tensors.chunks import CHUNK_BYTES, ChunkSequence, ChunkView, check_offset
from puf_common.tensors.encodings import Expander
from puf_common.v1 import tensors_pb2 as ts
from puf_server.core import norm_bounds, rounds, validation
from puf_server.core.state.rounds import ReceivedUpdate
from puf_server.core.state.state import State
from puf_server.engine.engine import Engine
from puf_server.engine.troubles import Trouble, Troubles
from puf_server.failpoints import hit
from puf_server.ingest.header import ExpectedUpdate, UploadHeader, UploadKey
from puf_server.ingest.quota import Quota
from puf_server.ingest.update_checks import UpdateCheck
from puf_server.storage.durable import unwritten
from puf_server.storage.layout import spool_name
from puf_server.storage.stored_files import NewStoredFile, StoredFile

# How long a refused update is shown to the operator. A client that cannot store one tries again sooner.
_SHOWN_SECONDS = 600.0


class Upload:
    """Reserves quota and a file when made; then `write` for each chunk, `publish` and `book`.

    `discard` ends an upload at any point before `publish`. An upload outlives the stream that carries it: a later
    stream may continue it. Safe to use from any thread.
    """

    def __init__(self, engine: Engine, quota: Quota, expected: ExpectedUpdate) -> None:
        header, layout = expected.header, expected.layout
        self._engine = engine
        self._expected = expected
        self._header = header
        self._sequence = ChunkSequence(header.byte_length, header.digest, header.digest_kind)
        bounds = norm_bounds.allowed(engine.state, engine.config, expected.assignment)
        self._check = UpdateCheck(layout, scale=header.applied_scale, most=bounds)
        self._expander = None if header.encoding == "full" else Expander(layout, header.encoding)
        # Bytes on the wire; the sequence counts the bytes of the update that they stand for.
        self.received = 0
        # A chunk was refused or not written, so that no further chunk can follow.
        self._failed = False
        # A call that ends may leave a thread behind that still writes.
        self._busy = threading.Lock()
        self._quota = quota
        quota.reserve(self, expected.client, expected.round, header.byte_length)
        self._file: NewStoredFile | None = None
        try:
            with _on_disk(engine.troubles):
                self._file = engine.store.spool.new(expected.client, self._name, header.byte_length)
            if engine.shared:
                # After the file has a name that other processes see: of two that begin at once, one sees the other.
                elsewhere = engine.store.spool.arriving_elsewhere(expected.client)
                quota.require(expected.client, expected.round, elsewhere)
        except BaseException:
            self.discard()
            raise

    @property
    def key(self) -> UploadKey:
        return self._expected.key

    @property
    def _name(self) -> str:
        return upload_name(self._expected.key)

    @classmethod
    def continued(cls, engine: Engine, quota: Quota, expected: ExpectedUpdate) -> Upload | None:
        """The upload with as many bytes as its header leaves out, from another process that has them. None: none has."""
        resume_at = expected.header.resume_at
        part = part_elsewhere(engine, expected.client, expected.header)
        if part is None:
            return None
        with part:
            if part.nbytes < resume_at:
                return None
            upload = cls(engine, quota, expected)
            try:
                while upload.received < resume_at:
                    block = memoryview(bytearray(min(CHUNK_BYTES, resume_at - upload.received)))
                    part.read_into(upload.received, block)
                    upload.write(ChunkView(upload.received, block))
            except BaseException:
                upload.discard()
                raise
        return upload

    @property
    def resumable(self) -> bool:
        """Whether a later stream could continue this upload: it has bytes, none were refused, the round wants it."""
        with self._busy:
            usable = self._file is not None and self.received > 0 and not self._failed
        return usable and self.wanted()

    def wanted(self) -> bool:
        """Whether the round still waits for this update."""
        return self._expected.wanted(self._engine.state)

    def write(self, chunk: ts.Chunk | ChunkView) -> None:
        """Checks, hashes and writes the next chunk."""
        with self._busy:
            try:
                self._write(chunk)
            except BaseException:
                self._failed = True
                raise

    def _write(self, chunk: ts.Chunk | ChunkView) -> None:
        whole: ts.Chunk | ChunkView = chunk
        if self._expander is not None:
            check_offset(chunk, self.received)
            whole = ChunkView(self._sequence.received, self._expander.feed(chunk.data))
        if whole.data or self._expander is None:
            self._sequence.check(whole)
            self._check.feed(whole.data)
            self._sequence.add(whole.data)
            with _on_disk(self._engine.troubles):
                self._open_file().write(whole.data)
            if not whole.offset:
                hit("upload.after_first_chunk")
        self.received += len(chunk.data)

    def _open_file(self) -> NewStoredFile:
        if self._file is None:
            raise Unavailable("the upload has ended; send the update again")
        return self._file

    def publish(self) -> None:
        """Verifies the whole update and gives it its name in the spool, durably."""
        with self._busy:
            self._sequence.finish()
            with _on_disk(self._engine.troubles):
                self._engine.store.spool.publish(self._open_file(), self._spool_name)
            self._file = None
        self._engine.troubles.clear(Trouble.UPLOADS)

    def book(self) -> bool:
        """Adds the published update to the round; from then on it counts. Returns whether it was there already."""
        hit("accept.before_persist")
        try:
            # Before the engine's lock: an object store may take a while to answer.
            with _on_disk(self._engine.troubles):
                there = self._engine.store.spool.exists(self._spool_name)
            duplicate = self._engine.call(lambda state, now: self._booked(state, now, there))
            if duplicate:
                # If the round was committed meanwhile, no record names the file.
                self._engine.delete_orphans()
        except BaseException:
            self._engine.delete_orphans()
            raise
        finally:
            # A booked update counts against the quota as part of the round; one that was not booked is deleted.
            self._quota.release(self)
        hit("accept.after_persist")
        hit("upload.before_reply")
        return duplicate

    def _booked(self, state: State, now: float, there: bool) -> tuple[State, bool]:
        header, norms = self._header, self._check.norms
        update = ReceivedUpdate(
            digest=header.digest.hex(),
            digest_kind=header.digest_kind,
            samples=header.samples,
            nbytes=header.byte_length,
            wire_nbytes=self.received,
            train_loss=validation.train_loss(header.train_loss),
            samples_processed=header.samples_processed,
            at=now,
            norm=norms.parameters,
            buffer_norm=norms.buffers,
            dose=header.dose,
            unlearned_samples=header.unlearned_samples,
            unlearned_digest=header.unlearned_digest.hex(),
        )
        state, duplicate = rounds.receive(state, self._expected.client, header, update)
        if not there:
            raise Unavailable("the update was deleted while it arrived; send it again")
        return state, duplicate

    @property
    def _spool_name(self) -> str:
        return spool_name(self._expected.round, self._expected.assignment.key, self._header.digest.hex())

    def discard(self) -> None:
        """Deletes what has arrived and releases the quota. Does nothing once the update is published."""
        with self._busy:
            if self._file is not None:
                self._file.discard()
                self._file = None
        self._quota.release(self)


def upload_name(key: UploadKey) -> str:
    """The same text for the same upload in every process."""
    return "/".join((*map(str, key[:-1]), key[-1].hex()))


def part_elsewhere(engine: Engine, client: str, header: UploadHeader) -> StoredFile | None:
    """What has arrived of an upload at another process. Encoded updates continue only where they began."""
    if not engine.shared or header.encoding != "full":
        return None
    return engine.store.spool.part_elsewhere(client, upload_name(header.upload_key(client)))


@contextmanager
def _on_disk(troubles: Troubles) -> Iterator[None]:
    """Turns a failed write into an error that asks the client to send the update again, and shows it to the operator."""
    try:
        yield
    except OSError as error:
        refusal = unwritten(error, "the update")
        troubles.report(Trouble.UPLOADS, refusal.message, _SHOWN_SECONDS)
        raise refusal from error
