"""A real server on loopback, in this process, for tests."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from puf_client.transport.grpc import GrpcTransport
from puf_common.network.tls import ServerTls
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_server.core.config import FederationConfig, Forgetting, Limits, Plan, Recipe
from puf_server.runtime.server import Addresses, Server
from puf_server.storage.creation import create
from puf_server.storage.state_store import Store
from puf_server.tracking.trackers import Tracker

TINY = Manifest(
    (
        TensorSpec("layer.weight", "f32", (3, 2)),
        TensorSpec("layer.bias", "f32", (3,)),
        TensorSpec("norm.running_mean", "f32", (3,), "buffer"),
        TensorSpec("norm.steps", "i64", (), "buffer"),
    )
)


def tiny_payload() -> bytearray:
    payload = bytearray(TINY.nbytes(MODEL))
    for view in TINY.views(payload, MODEL).values():
        view[...] = np.arange(view.size).reshape(view.shape) + 1
    return payload


def tiny_config(**changes: Any) -> FederationConfig:
    plan = {"rounds": 2, "min_clients": 2, "evaluate_every": 0, "keep_models": 0, "heartbeat_seconds": 1.0}
    # A small update already collapses a tiny model.
    forgetting = {"measure_seconds": 0.0, "collapse_ratio": 0.0, "strength": "fixed"}
    return FederationConfig(
        id="f-test",
        model="tiny",
        plan=Plan(**{**plan, "absent_seconds": 10.0, **changes.pop("plan", {})}),
        forgetting=Forgetting(**{**forgetting, **changes.pop("forgetting", {})}),
        recipe=Recipe(**changes.pop("recipe", {})),
        limits=Limits(**{"forget_share": 1.0, **changes.pop("limits", {})}),
        **changes,
    )


def make_state(
    directory: Path,
    config: FederationConfig | None = None,
    manifest: Manifest = TINY,
    payload: bytearray | None = None,
    database: str = "",
    objects: str = "",
) -> Path:
    config, payload = config or tiny_config(), payload or tiny_payload()
    create(directory, config, manifest, payload, time.time(), database=database, objects=objects)
    return directory


@contextmanager
def running(
    directory: Path,
    tls: ServerTls | None = None,
    metrics: str = "",
    tracker: Callable[[str], Tracker] | None = None,
    database: str = "",
) -> Iterator[Server]:
    """Serves the state in `directory` on free loopback ports. The end of the block stops the server as SIGTERM does."""
    started: Future[tuple[Server, asyncio.AbstractEventLoop]] = Future()

    async def serve() -> None:
        listeners = Addresses("127.0.0.1:0", "127.0.0.1:0", metrics)
        async with Server(Store.open(directory, database=database), listeners, tls, tracker=tracker) as server:
            started.set_result((server, asyncio.get_running_loop()))
            await server.stopped.wait()

    def body() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=body, name="server")
    thread.start()
    server, loop = started.result(timeout=30)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(server.stopped.set)
        thread.join(timeout=30)
        assert not thread.is_alive()


class Federation:
    """A server that can be stopped and started again on the same port with the same state."""

    def __init__(self, directory: Path, config: FederationConfig, manifest: Manifest) -> None:
        self.directory, self.manifest = directory, manifest
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.target = f"127.0.0.1:{free.getsockname()[1]}"
        create(directory, config, manifest, bytearray(manifest.nbytes(MODEL)), time.time())
        self.start()

    def start(self) -> None:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True)
        self._thread.start()
        assert started.wait(20)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self.server.stopped.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def weights(self, version: int) -> float:
        """The value of all weights of the model: in these tests they are equal."""
        with GrpcTransport(self.target, "a") as transport:
            _, payload = transport.fetch_model(version)
        w = self.manifest.views(payload, MODEL)["w"].ravel()
        assert (w == w[0]).all()
        return float(w[0])

    async def _serve(self, started: threading.Event) -> None:
        async with Server(Store.open(self.directory), Addresses(self.target, "127.0.0.1:0")) as server:
            self._loop = asyncio.get_running_loop()
            self.server = server
            started.set()
            await server.stopped.wait()


def metadata(name: str) -> tuple[tuple[str, str], ...]:
    return (("puf-client", name),)
