"""A real server on loopback, in this process, for tests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from puf_common.manifest import MODEL, Manifest, TensorSpec
from puf_common.tls import ServerTls
from puf_server.core.config import FederationConfig, Forgetting, Limits, Plan, Recipe
from puf_server.serve import Listeners, Server
from puf_server.store import Store, create

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
    # Tiny models collapse at a touch.
    forgetting = {"measure_seconds": 0.0, "collapse_ratio": 0.0}
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
) -> Path:
    create(directory, config or tiny_config(), manifest, payload or tiny_payload(), time.time())
    return directory


@contextmanager
def running(directory: Path, tls: ServerTls | None = None, metrics: str = "") -> Iterator[Server]:
    """Serves the state in `directory` on free ports of loopback; ends like SIGTERM does."""
    started: Future[tuple[Server, asyncio.AbstractEventLoop]] = Future()

    async def serve() -> None:
        listeners = Listeners("127.0.0.1:0", "127.0.0.1:0", metrics)
        async with Server(Store.open(directory), listeners, tls) as server:
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


def metadata(name: str) -> tuple[tuple[str, str], ...]:
    return (("puf-client", name),)
