"""A client that holds one chunk at a time: it checks a model as it arrives and makes an update as it sends it.

    python -m puf_lab.bench.streaming_client HOST:PORT NAME

It shows what the server needs for models that are larger than the memory of the client.
"""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np

from puf_common.config.exit_codes import Exit
from puf_common.errors import PufError
from puf_common.network.status import IDENTITY_KEY, channel_options, error_from
from puf_common.tensors.chunk_frames import chunk_frame, chunk_of
from puf_common.tensors.chunks import CHUNK_BYTES, ChunkSequence
from puf_common.tensors.digests import hasher, to_pb
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import federation_pb2_grpc as rpc

_SECONDS = 3600.0
_WAIT_SECONDS = 20.0
_FETCH = "/puf.v1.Federation/FetchModel"
_SUBMIT = "/puf.v1.Federation/SubmitUpdate"


class StreamingClient:
    """One client under its name. Its update repeats one chunk of noise; other clients have other noise."""

    def __init__(self, channel: grpc.Channel, name: str) -> None:
        self._stub: Any = rpc.FederationStub(channel)
        self._call: dict[str, Any] = {"metadata": ((IDENTITY_KEY, name),), "timeout": _SECONDS}
        self._fetch = channel.unary_stream(_FETCH, fed.FetchModelRequest.SerializeToString, None)
        self._submit = channel.stream_unary(_SUBMIT, None, fed.SubmitUpdateReply.FromString)
        described = self._stub.Describe(fed.DescribeRequest(), **self._call)
        self._manifest = Manifest.from_pb(described.manifest)
        self._nbytes = self._manifest.nbytes(UPDATE)
        noise = np.frombuffer(secrets.token_bytes(CHUNK_BYTES // 4), np.uint8).astype("<f4") / 1e6
        self._chunk = noise.tobytes()
        digest = hasher("blake3")
        for _, data in self._chunks():
            digest.update(data)
        self._digest = digest.digest()
        join = fed.JoinRequest(
            instance=secrets.token_hex(8),
            samples=1,
            manifest_fingerprint=self._manifest.fingerprint,
            recipe_fingerprint=described.recipe.fingerprint,
        )
        self._joined = self._stub.Join(join, **self._call)

    def work(self) -> None:
        """Answers every round until the server sends the client away."""
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(ended,), daemon=True)
        beating.start()
        try:
            wait = fed.WaitForWorkRequest(session=self._joined.session, timeout_seconds=_WAIT_SECONDS)
            while True:
                reply = self._stub.WaitForWork(wait, **self._call)
                kind = reply.WhichOneof("work")
                if kind == "leave":
                    return
                if kind == "train":
                    self._receive(reply.train.base_version)
                    self._send(reply.train)
        finally:
            ended.set()

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(self._joined.heartbeat_seconds):
            self._stub.Heartbeat(fed.HeartbeatRequest(session=self._joined.session), **self._call)

    def _receive(self, version: int) -> None:
        """Fetches a model and checks its digest. The bytes are not kept."""
        stream = self._fetch(fed.FetchModelRequest(version=version), **self._call)
        header = fed.FetchModelReply.FromString(next(iter(stream))).header
        arriving = ChunkSequence(self._manifest.nbytes(MODEL), header.blake3, "blake3")
        for frame in stream:
            chunk = chunk_of(frame)
            if chunk is None:
                raise PufError("the server sent a frame that is no chunk")
            arriving.check(chunk)
            arriving.add(chunk.data)
        arriving.finish()

    def _send(self, work: fed.TrainWork) -> None:
        header = fed.UpdateHeader(
            key=work.key,
            base_version=work.base_version,
            samples=work.samples or 1,
            applied_scale=1.0,
            byte_length=self._nbytes,
            digest=self._digest,
            digest_kind=to_pb("blake3"),
            manifest_fingerprint=self._manifest.fingerprint,
        )
        self._submit(self._frames(header), **self._call)

    def _frames(self, header: fed.UpdateHeader) -> Iterator[bytes]:
        yield fed.SubmitUpdateRequest(header=header).SerializeToString()
        for offset, data in self._chunks():
            yield chunk_frame(offset, data)

    def _chunks(self) -> Iterator[tuple[int, memoryview]]:
        whole = memoryview(self._chunk)
        for offset in range(0, self._nbytes, len(whole)):
            yield offset, whole[: self._nbytes - offset]


def main(address: str, name: str) -> int:
    with grpc.insecure_channel(address, options=channel_options(address)) as channel:
        try:
            StreamingClient(channel, name).work()
        except grpc.RpcError as failure:
            sys.stderr.write(f"{error_from(failure, address)}\n")
            return Exit.FAILURE
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
