"""A client on the generated stubs. Tests can set every field to a wrong value."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from tests.running import TINY, metadata

from puf_common.network.status import error_from
from puf_common.network.tls import ClientTls
from puf_common.tensors.manifest import UPDATE
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import federation_pb2_grpc as rpc
from puf_common.v1 import tensors_pb2 as ts
from puf_common.v1 import tickets_pb2 as tk


def update_bytes(value: float = 0.5, *, steps: int = 1) -> bytes:
    payload = bytearray(TINY.nbytes(UPDATE))
    views = TINY.views(payload, UPDATE)
    for name, view in views.items():
        view[...] = steps if name == "norm.steps" else value
    return bytes(payload)


class Raw:
    def __init__(self, port: int, name: str, tls: ClientTls | None = None) -> None:
        self.name = name
        target = f"127.0.0.1:{port}"
        self.channel = tls.channel(target, []) if tls else grpc.insecure_channel(target)
        self.stub = rpc.FederationStub(self.channel)
        self.options: dict[str, Any] = {"metadata": metadata(name), "timeout": 20.0}
        self.session = ""

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def join(self, samples: int = 10, holdout: int = 0, **fields: Any) -> fed.JoinReply:
        about = self.stub.Describe(fed.DescribeRequest(), **self.options)
        usual: dict[str, Any] = {
            "instance": f"i-{self.name}",
            "samples": samples,
            "holdout_samples": holdout,
            "manifest_fingerprint": about.manifest.fingerprint,
            "recipe_fingerprint": about.recipe.fingerprint,
        }
        reply = self.stub.Join(fed.JoinRequest(**(usual | fields)), **self.options)
        self.session = reply.session
        return reply

    def wait(self, seconds: float = 20.0) -> fed.WaitForWorkReply:
        request = fed.WaitForWorkRequest(session=self.session, timeout_seconds=seconds)
        return self.stub.WaitForWork(request, **self.options)

    def fetch(self, version: int) -> bytes:
        frames = list(self.stub.FetchModel(fed.FetchModelRequest(version=version), **self.options))
        return b"".join(f.chunk.data for f in frames[1:])

    def header(self, work: fed.TrainWork, payload: bytes, **fields: Any) -> fed.UpdateHeader:
        flipped_here = work.flip == tk.FLIP_CLIENT
        usual: dict[str, Any] = {
            "key": work.key,
            "base_version": work.base_version,
            "samples": work.samples or 10,
            "applied_scale": work.scale if flipped_here else 1.0,
            "byte_length": len(payload),
            "digest": hashlib.sha256(payload).digest(),
            "manifest_fingerprint": TINY.fingerprint,
            "train_loss": 1.0,
        }
        return fed.UpdateHeader(**(usual | fields))

    def submit(self, work: fed.TrainWork, payload: bytes | None = None, **fields: Any) -> fed.SubmitUpdateReply:
        payload = update_bytes() if payload is None else payload
        return self.send(self.header(work, payload, **fields), payload)

    def send(self, header: fed.UpdateHeader, payload: bytes, chunk: int = 16) -> fed.SubmitUpdateReply:
        return self.stub.SubmitUpdate(iter(list(frames(header, payload, chunk))), **self.options)

    def file(self, **request: Any) -> fed.FileUnlearningReply:
        usual: dict[str, Any] = {"request_key": f"k-{self.name}", "scope": tk.SCOPE_CLIENT}
        wanted = tk.UnlearningRequest(**(usual | request))
        return self.stub.FileUnlearning(fed.FileUnlearningRequest(request=wanted), **self.options)


def frames(header: fed.UpdateHeader, payload: bytes, chunk: int = 16) -> Iterator[fed.SubmitUpdateRequest]:
    yield fed.SubmitUpdateRequest(header=header)
    for start in range(0, len(payload), chunk):
        yield fed.SubmitUpdateRequest(chunk=ts.Chunk(offset=start, data=payload[start : start + chunk]))


def status(error: grpc.RpcError) -> tuple[str, str]:
    """Code and stable reason of a failed call."""
    return error.code().name, error_from(error).reason


def nan_update() -> bytes:
    payload = bytearray(update_bytes())
    TINY.views(payload, UPDATE)["layer.bias"][1] = np.nan
    return bytes(payload)
