"""A federation in this thread, called through its request handlers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from puf_common.tensors.chunks import chunks
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.engine.engine import Engine
from puf_server.ingest.upload import Upload
from puf_server.rpc.requests import Handlers
from puf_server.storage.durable import DISK, Files
from puf_server.storage.state_store import Store
from tests.grpc.raw import update_bytes

__all__ = ["Clock", "Local"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Local:
    def __init__(self, state: Path, clock: Clock | None = None, files: Files = DISK, database: str = "") -> None:
        self.clock = clock or Clock()
        self.engine = Engine(Store.open(state, files, database=database), self.clock)
        self.handlers = Handlers(self.engine)

    def join_request(self, name: str, **fields: Any) -> fed.JoinRequest:
        usual: dict[str, Any] = {
            "instance": f"i-{name}",
            "samples": 10,
            "manifest_fingerprint": self.engine.manifest.fingerprint,
            "recipe_fingerprint": self.engine.config.recipe_fingerprint(),
        }
        return fed.JoinRequest(**(usual | fields))

    def join(self, *names: str) -> None:
        for name in names:
            self.handlers.join(name, self.join_request(name))

    def header(self, name: str, payload: bytes, **fields: Any) -> fed.UpdateHeader:
        """The header of an update for the work that this client has now."""
        reply = self.handlers.work(name, self.engine.state.members[name].session)
        assert reply is not None
        usual: dict[str, Any] = {
            "key": reply.train.key,
            "base_version": reply.train.base_version,
            "samples": 10,
            "applied_scale": reply.train.scale,
            "byte_length": len(payload),
            "digest": hashlib.sha256(payload).digest(),
            "manifest_fingerprint": self.engine.manifest.fingerprint,
        }
        return fed.UpdateHeader(**(usual | fields))

    def begin(self, name: str, value: float, payload: bytes | None = None) -> Upload:
        """An upload whose chunks are all written and which is not published yet."""
        payload = payload or update_bytes(value)
        upload = self.handlers.begin_upload(name, self.header(name, payload))
        for chunk in chunks(payload):
            upload.write(chunk)
        return upload

    def submit(self, name: str, value: float = 0.0, payload: bytes | None = None) -> None:
        self.handlers.finish_upload(self.begin(name, value, payload))

    def forget(self, name: str) -> str:
        """Files a request to forget the whole client; returns the ticket's id."""
        request = tk.UnlearningRequest(request_key=f"k-{name}", scope=tk.SCOPE_CLIENT)
        return self.handlers.tickets.file_unlearning(name, fed.FileUnlearningRequest(request=request)).ticket.id

    def spool(self) -> list[str]:
        """Names of the files in the spool."""
        return sorted(p.name for p in (self.engine.store.directory / "spool").iterdir())
