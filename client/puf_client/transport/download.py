"""One model on its way to the client, over as many streams as it takes.

A broken stream continues where it stopped. A difference is applied as it arrives. The digest of the result is that of the
whole model, so a wrong difference is noticed and the whole model is asked for.
"""

from __future__ import annotations

from puf_client.transport.base import HeldModel
from puf_common.errors import CutShort, TransferCorrupted
from puf_common.tensors.chunks import Assembler, ChunkView, check_offset
from puf_common.tensors.differences import Decoder, decoder
from puf_common.tensors.manifest import MODEL, Manifest
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tensors_pb2


class Download:
    """The state of one download. `held` is a model that the client has; None asks for the whole model."""

    def __init__(self, version: int, manifest: Manifest, held: HeldModel | None) -> None:
        self._version = version
        self._manifest = manifest
        self._held = held
        self._header: pb.ModelHeader | None = None
        self._received = 0

    def request(self) -> pb.FetchModelRequest:
        """What to ask for: the model, or the rest of it."""
        request = pb.FetchModelRequest(version=self._version)
        if self._held is not None:
            request.held_version, request.held_digest = self._held.version, self._held.digest
        if self._header is not None and self._received:
            request.resume_at = self._received
            request.resume_digest = self._header.difference.digest or self._header.digest
        return request

    def begin(self, header: pb.ModelHeader) -> None:
        """Takes the header of a stream. Drops what arrived before if the stream begins at 0."""
        known, self._header = self._header, header
        if header.begins_at:
            expected = pb.ModelHeader()
            expected.CopyFrom(header if known is None else known)
            expected.begins_at = self._received
            if known is None or header != expected:
                raise TransferCorrupted(f"the server continues another stream of model {self._version}")
            return
        nbytes, sent = self._manifest.nbytes(MODEL), header.difference
        if header.byte_length != nbytes:
            raise TransferCorrupted(
                f"the server states {header.byte_length} bytes for model {self._version}, the manifest {nbytes}"
            )
        self._received, self._total, self._decoder = 0, nbytes, self._decoder_of(header)
        if self._decoder is not None:
            self._total = sent.byte_length
            if self._total >= nbytes:
                raise TransferCorrupted(f"the difference to model {self._version} is longer than the model")
        self._assembled = Assembler(nbytes, header.blake3 or header.digest, "blake3" if header.blake3 else "sha256")
        self._placed = 0

    def _decoder_of(self, header: pb.ModelHeader) -> Decoder | None:
        if not header.HasField("difference"):
            return None
        if self._held is None or header.difference.base_version != self._held.version:
            raise TransferCorrupted(f"the server sent a difference to a model that was not named, for {self._version}")
        return decoder(header.difference.kind, self._manifest, self._held.payload)

    def add(self, chunk: tensors_pb2.Chunk | ChunkView) -> None:
        """Takes the next chunk."""
        check_offset(chunk, self._received)
        if self._decoder is None:
            self._assembled.add(chunk)
        else:
            if not chunk.data:
                raise TransferCorrupted(f"a chunk of the difference to model {self._version} is empty")
            if self._received + len(chunk.data) > self._total:
                raise TransferCorrupted(f"the difference to model {self._version} is longer than its header states")
            for part in self._decoder.feed(chunk.data):
                self._assembled.add(ChunkView(self._placed, part))
                self._placed += len(part)
        self._received += len(chunk.data)

    def finish(self) -> tuple[pb.ModelHeader, memoryview]:
        """The header and the verified bytes of the model."""
        assert self._header is not None
        if self._received != self._total:
            raise CutShort(f"the stream of model {self._version} ended after {self._received} of {self._total} bytes")
        return self._header, self._assembled.finish()
