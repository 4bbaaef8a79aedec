"""One update between its header and its acknowledgement."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puf_common.errors import Forgotten, InvalidUpdate, StaleRound, TransferCorrupted, Unavailable
from puf_common.tensors.chunks import ChunkView, check_offset
from puf_common.tensors.digests import digest_kind
from puf_common.tensors.encodings import Expander
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tensors_pb2 as ts
from puf_server.core import roster, rounds, update_bounds, validation
from puf_server.core.methods.layers import outputs
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.rounds import ReceivedUpdate
from puf_server.core.state.state import State
from puf_server.failpoints import hit
from puf_server.ingest.quota import Share
from puf_server.ingest.upload_file import Upload
from puf_server.ingest.value_checks import UpdateCheck
from puf_server.rpc import messages
from puf_server.storage.state_store import spool_name

if TYPE_CHECKING:
    from puf_server.rpc.requests import Handlers

__all__ = ["PendingUpload", "upload_key"]


@dataclass
class _Arrived:
    """What came so far; outlives the stream it came with."""

    upload: Upload
    expander: Expander | None
    share: Share
    # Bytes as they travelled, and what they became.
    on_wire: int = 0
    expanded: int = 0
    # A chunk was refused, or could not be written: nothing can be put behind it.
    spoilt: bool = False


class PendingUpload:
    """Judges the header when made; then `write` for every chunk and `finish`, or `discard`. For any thread."""

    def __init__(self, handlers: Handlers, name: str, header: fed.UpdateHeader) -> None:
        self._handlers = handlers
        self._engine = handlers.engine
        self._name = name
        self._header = header
        state = self._engine.state
        member = roster.member_of(state, name)
        if member.status is not MemberStatus.ACTIVE:
            raise Forgotten(f"{name} was forgotten by this federation; its updates are refused", client=name)
        self._engine.manifest.require(header.manifest_fingerprint, f"the update of {name}")
        key = header.key
        self._stated = rounds.UpdateHeader(
            membership=key.membership,
            number=key.round,
            attempt=key.attempt,
            part=messages.part_of(key.part),
            base=header.base_version,
            samples=header.samples,
            applied_scale=header.applied_scale,
        )
        self._round, self._assignment = rounds.expected_assignment(state, name, self._stated)
        if not math.isfinite(header.applied_scale):
            raise InvalidUpdate("the stated scale is not finite")
        rounds.check_header(self._round, self._assignment, self._stated)
        validation.processed(header.samples_processed, self._assignment)
        wanted = handlers.config.plan.update_encoding
        if header.encoding != messages.encoding(wanted):
            raise InvalidUpdate(f"updates of this federation travel as {wanted}, this one does not", expected=wanted)
        kind = digest_kind(header.digest_kind)
        if kind is None:
            raise InvalidUpdate("the digest is of a kind that this server does not know; SHA-256 will do")
        self._digest_kind = kind
        self.key = upload_key(name, header)
        # A call that breaks off leaves a thread behind that may still be writing.
        self._busy = threading.Lock()
        if header.resume_at:
            self._arrived = self._before()
        else:
            handlers.parked.drop(name)
            layout = outputs(self._engine.manifest, self._assignment.outputs)
            check = UpdateCheck(
                layout, scale=header.applied_scale, most=update_bounds.allowed(state, handlers.config, self._assignment)
            )
            # The length is the manifest's from here on; nothing is written yet.
            upload = Upload(self._engine.store, layout, header.byte_length, header.digest, kind, check)
            try:
                share = handlers.quota.taken(name, self._round, header.byte_length)
            except BaseException:
                upload.discard()
                raise
            self._arrived = _Arrived(upload, None if wanted == "full" else Expander(layout, wanted), share)

    def _before(self) -> _Arrived:
        before = self._handlers.parked.take(self.key, PendingUpload)
        if before is None or before.received != self._header.resume_at:
            if before is not None:
                before.discard()
            raise TransferCorrupted("that part of the update is not here any more; send it from the beginning")
        return before._arrived

    @property
    def received(self) -> int:
        """Bytes as they travel."""
        return self._arrived.on_wire

    @property
    def unfinished(self) -> bool:
        with self._busy:
            return self._arrived.upload.open and not self._arrived.spoilt

    def wanted(self) -> bool:
        """Whether the round still waits for this update."""
        try:
            current, assignment = rounds.expected_assignment(self._engine.state, self._name, self._stated)
        except StaleRound:
            return False
        return assignment.key not in current.received

    def write(self, chunk: ts.Chunk | ChunkView) -> None:
        with self._busy:
            try:
                self._write(chunk)
            except BaseException:
                self._arrived.spoilt = True
                raise

    def _write(self, chunk: ts.Chunk | ChunkView) -> None:
        self._handlers.bytes_received += len(chunk.data)
        arrived = self._arrived
        if arrived.expander is None:
            arrived.upload.write(chunk)
        else:
            check_offset(chunk, arrived.on_wire)
            data = arrived.expander.feed(chunk.data)
            if data:
                arrived.upload.write(ChunkView(arrived.expanded, data))
            arrived.expanded += len(data)
        arrived.on_wire += len(chunk.data)

    def finish(self) -> fed.SubmitUpdateReply:
        """Puts the update on disk, then books it; only then it counts."""
        header, store = self._header, self._engine.store
        digest = header.digest.hex()
        file = spool_name(self._round, self._assignment.key, digest)
        with self._busy:
            self._arrived.upload.publish(file)

        def change(state: State, now: float) -> tuple[State, bool]:
            update = ReceivedUpdate(
                digest=digest,
                digest_kind=self._digest_kind,
                samples=header.samples,
                nbytes=header.byte_length,
                wire_nbytes=self.received,
                train_loss=validation.train_loss(header.train_loss),
                samples_processed=header.samples_processed,
                at=now,
                norm=self._arrived.upload.norms.parameters,
                buffer_norm=self._arrived.upload.norms.buffers,
            )
            state, duplicate = rounds.receive(state, self._name, self._stated, update)
            if not store.spool_path(file).exists():
                raise Unavailable("the update was swept away while it arrived; send it again")
            return state, duplicate

        hit("booking.before")
        try:
            duplicate = self._engine.call(change)
        except BaseException:
            self._engine.delete_orphans()
            raise
        finally:
            # From here on it counts as kept, or is gone.
            self._arrived.share.release()
        hit("booking.after")
        hit("upload.before_reply")
        return fed.SubmitUpdateReply(position=self._handlers.position(), duplicate=duplicate)

    def discard(self) -> None:
        with self._busy:
            self._arrived.upload.discard()
        self._arrived.share.release()


def upload_key(name: str, header: fed.UpdateHeader) -> tuple[str, bytes, bytes]:
    return name, header.key.SerializeToString(deterministic=True), header.digest
