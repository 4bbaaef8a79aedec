"""The long-running process: two listeners, health, reflection, a clock, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from puf_common.errors import PufError
from puf_common.logging import get_logger
from puf_common.network.tls import ServerTls
from puf_common.v1 import federation_pb2, operator_pb2, operator_pb2_grpc
from puf_server import failpoints
from puf_server.admission.listeners import OperatorAccess, bind, insecure_doors, secure_doors
from puf_server.admission.tokens import Tokens
from puf_server.core import roster
from puf_server.engine.engine import Engine
from puf_server.rpc.federation import FederationService
from puf_server.rpc.notifier import Changes
from puf_server.rpc.operator import OperatorService
from puf_server.rpc.requests import Handlers
from puf_server.runtime.metrics import Listener, Metrics
from puf_server.storage.state_store import Store

__all__ = ["Listeners", "Server", "serve"]

_TICK_SECONDS = 0.5
_FAREWELL_SECONDS = 3.0
# How long a call of somebody who was revoked may last.
_LOOK_SECONDS = 0.25
# How much longer than its grace a forgotten client's token may last.
_GRACE_LOOK_SECONDS = 3600.0
log = get_logger(__name__)


@dataclass(frozen=True)
class Listeners:
    """Where to listen, as HOST:PORT; port 0 takes a free one. Nobody is told metrics unless they have an address."""

    federation: str
    operator: str
    metrics: str = ""


class Server:
    """One federation being served. Use as `async with Server(...)`. Without `tls` callers are who they say they are."""

    def __init__(
        self,
        store: Store,
        listeners: Listeners,
        tls: ServerTls | None = None,
        stopped: asyncio.Event | None = None,
    ) -> None:
        self._store = store
        self._listeners = listeners
        self._tls = tls
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="puf")
        self._fold_wanted = asyncio.Event()
        self._ending = False
        self.stopped = stopped or asyncio.Event()

    async def __aenter__(self) -> Server:
        try:
            await self._start()
        except BaseException:
            self._threads.shutdown(wait=True)
            self._store.close()
            raise
        return self

    async def _start(self) -> None:
        self.engine = Engine(self._store, time.time)
        loop, changes = asyncio.get_running_loop(), Changes(self.engine.state)

        def on_change() -> None:
            changes.notify(self.engine.state)
            loop.call_soon_threadsafe(self._fold_wanted.set)

        self.engine.on_change = on_change
        self.handlers = Handlers(self.engine)
        self.metrics = Metrics(self.handlers)
        self._health = health_aio.HealthServicer()
        limits = self._store.config.limits
        doors = secure_doors(self._store.directory, self._tls, limits) if self._tls else insecure_doors(limits)
        self._door, self._operator_door, access = doors
        self._federation = self._door.server()
        federation = FederationService(self.handlers, self._door.identify, changes, self._threads, self.metrics)
        federation.add_to(self._federation)
        self._operator = self._operator_door.server()
        operator_pb2_grpc.add_OperatorServicer_to_server(
            OperatorService(self.handlers, self._threads, self.stopped.set), self._operator
        )
        for server, service in (
            (self._federation, federation_pb2.DESCRIPTOR.services_by_name["Federation"].full_name),
            (self._operator, operator_pb2.DESCRIPTOR.services_by_name["Operator"].full_name),
        ):
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            reflection.enable_server_reflection(
                (service, reflection.SERVICE_NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name), server
            )
        self.port = bind(self._federation, self._door, self._listeners.federation)
        self.operator_port = bind(self._operator, self._operator_door, self._listeners.operator)
        self._listener = Listener(self.metrics, self._listeners.metrics) if self._listeners.metrics else None
        self.metrics_port = self._listener.port if self._listener else 0
        await self._federation.start()
        await self._operator.start()
        self._fold_wanted.set()
        self._folder = asyncio.create_task(self._fold())
        self._tasks = [asyncio.create_task(job()) for job in (self._tick, self._watch_doors, self._drop_tokens)]
        where = _reachable(self._listeners.operator, self.operator_port)
        replace(access, address=where).write(self._store.directory)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def __aexit__(self, *_: object) -> None:
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._farewell()
        for task in self._tasks:
            task.cancel()
        # A sum that is being computed is committed: it is nearly done, and whoever restarts would do it again. Meanwhile
        # nobody else gets in; calls under way have a moment to end.
        self._ending = True
        self._fold_wanted.set()
        OperatorAccess.remove(self._store.directory)
        await asyncio.gather(
            self._folder, self._federation.stop(1.0), self._operator.stop(1.0), *self._tasks, return_exceptions=True
        )
        if self._listener is not None:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._listener.close)
        self._threads.shutdown(wait=True)
        self.engine.close()

    async def _farewell(self) -> None:
        """After `puf-server stop`: a moment for waiting clients to fetch the order to leave."""
        if self.engine.state.stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    while self.engine.presence.seen:
                        await asyncio.sleep(0.05)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        await self._health.set("", status)
        for name in ("puf.v1.Federation", "puf.v1.Operator"):
            await self._health.set(name, status)

    async def _tick(self) -> None:
        """Lets time pass for the core: deadlines, absences."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            try:
                await loop.run_in_executor(self._threads, self.engine.tick)
                await loop.run_in_executor(self._threads, self.handlers.tidy)
            except Exception as error:
                log.error("state not written", error=str(error))
                self.engine.trouble = f"the state cannot be written: {error}"
            else:
                if self.engine.round_to_fold() is None:
                    self.engine.trouble = ""

    async def _watch_doors(self) -> None:
        """Ends calls of those who were revoked, or whose certificate expired, while they last."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                self._door.look_again()
                self._operator_door.look_again()
            except Exception as error:
                log.error("open calls not looked at", exc_info=error)

    def _took(self, kind: str, phase: str, seconds: float) -> None:
        self.metrics.phase_seconds.labels(kind=kind, phase=phase).observe(seconds)

    async def _drop_tokens(self) -> None:
        """Whoever was forgotten loses its token when its grace is over."""
        while True:
            gone = roster.past_grace(self.engine.state, self.engine.config, time.time())
            try:
                for name in Tokens(self._store.directory).drop(gone):
                    log.info("the token of a forgotten client is deleted", client=name)
            except Exception as error:
                log.error("tokens of forgotten clients not deleted", error=str(error))
            await asyncio.sleep(_GRACE_LOOK_SECONDS)

    async def _fold(self) -> None:
        """Folds rounds as they close, one at a time, away from the event loop. Ends between two of them, never in one."""
        loop = asyncio.get_running_loop()
        while not self._ending:
            await self._fold_wanted.wait()
            self._fold_wanted.clear()
            while not self._ending and (current := self.engine.round_to_fold()) is not None:
                took = partial(self._took, current.kind)
                try:
                    closed = time.monotonic()
                    result = await loop.run_in_executor(self._threads, self.engine.fold, current)
                    folded = time.monotonic()
                    await loop.run_in_executor(self._threads, self.engine.commit, result)
                    took("collecting", max(0.0, self.engine.clock() - current.opened_at - (time.monotonic() - closed)))
                    took("folding", folded - closed)
                    took("committing", time.monotonic() - folded)
                    self.engine.trouble = ""
                    log.info(
                        "round committed", round=current.number, kind=current.kind, version=self.engine.state.version
                    )
                except Exception as error:
                    # A full disk, mostly. Whatever it is, rounds must not stop being folded when it is over.
                    log.error("round not folded; trying again", round=current.number, error=str(error))
                    self.engine.trouble = f"round {current.number} cannot be summed up, trying again: {error}"
                    await asyncio.sleep(_TICK_SECONDS)
                    if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        with contextlib.suppress(PufError):
                            await loop.run_in_executor(self._threads, self.engine.verify_spool)


def _reachable(address: str, port: int) -> str:
    """Where a command on this machine finds a listener."""
    host = address.rpartition(":")[0]
    return f"127.0.0.1:{port}" if host in ("", "0.0.0.0", "[::]") else f"{host}:{port}"  # noqa: S104


def serve(
    directory: Path,
    listeners: Listeners,
    announce: Path | None = None,
    *,
    tls: ServerTls | None = None,
    limits: Mapping[str, Any] | None = None,
) -> None:
    """Serves until the operator stops it or a signal comes. `announce` gets the ports as soon as they are open.

    `limits` hold for this process, in the place of those that the federation was made with.
    """
    failpoints.arm_from_environment()
    asyncio.run(_serve(directory, listeners, announce, tls, limits or {}))


def _allow_files(connections: int) -> None:
    """Each connection is a file; what the system allows, but does not give unasked, is asked for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 512
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        if most < wanted:
            log.warning("fewer open files than connections are allowed", files=most, connections=connections)


async def _serve(
    directory: Path, listeners: Listeners, announce: Path | None, tls: ServerTls | None, limits: Mapping[str, Any]
) -> None:
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Before anything is opened: whoever is told to end while it recovers ends in order, too.
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    store = Store.open(directory)
    if limits:
        changed = store.config.limits.model_copy(update=dict(limits))
        store.config = store.config.model_copy(update={"limits": changed})
    _allow_files(store.config.limits.connections)
    async with Server(store, listeners, tls, stopped=told) as server:
        log.info(
            "serving",
            federation=store.config.title,
            round=server.engine.state.number,
            port=server.port,
            operator_port=server.operator_port,
            **({"metrics_port": server.metrics_port} if server.metrics_port else {}),
        )
        if announce is not None:
            ports = [server.port, server.operator_port, *([server.metrics_port] if server.metrics_port else [])]
            announce.write_text(" ".join(map(str, ports)) + "\n")
        await server.stopped.wait()
        log.info("stopping", round=server.engine.state.number)
