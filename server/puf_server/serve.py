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
from pathlib import Path
from typing import Any

from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from puf_common.errors import PufError
from puf_common.logging import get_logger
from puf_common.tls import ServerTls
from puf_common.v1 import federation_pb2, federation_pb2_grpc, operator_pb2, operator_pb2_grpc
from puf_server import failpoints
from puf_server.door import OperatorAccess, bind, insecure_doors, secure_doors
from puf_server.engine import Engine
from puf_server.handlers import Handlers
from puf_server.operator import OperatorService
from puf_server.service import Changes, FederationService
from puf_server.store import Store

__all__ = ["Listeners", "Server", "serve"]

_TICK_SECONDS = 0.5
_FAREWELL_SECONDS = 3.0
# How long a call of somebody who was revoked may last.
_LOOK_SECONDS = 0.25
log = get_logger(__name__)


@dataclass(frozen=True)
class Listeners:
    """Where to listen, as HOST:PORT; port 0 takes a free one."""

    federation: str
    operator: str


class Server:
    """One federation being served. Use as `async with Server(...)`. Without `tls` callers are who they say they are."""

    def __init__(self, store: Store, listeners: Listeners, tls: ServerTls | None = None) -> None:
        self._store = store
        self._listeners = listeners
        self._tls = tls
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="puf")
        self._fold_wanted = asyncio.Event()
        self.stopped = asyncio.Event()

    async def __aenter__(self) -> Server:
        try:
            await self._start()
        except BaseException:
            self._threads.shutdown(wait=True)
            self._store.close()
            raise
        return self

    async def _start(self) -> None:
        loop, changes = asyncio.get_running_loop(), Changes()

        def on_change() -> None:
            changes.notify()
            loop.call_soon_threadsafe(self._fold_wanted.set)

        self.engine = Engine(self._store, time.time, on_change)
        self.handlers = Handlers(self.engine)
        self._health = health_aio.HealthServicer()
        limits = self._store.config.limits
        doors = secure_doors(self._store.directory, self._tls, limits) if self._tls else insecure_doors(limits)
        self._door, self._operator_door, access = doors
        self._federation = self._door.server()
        federation_pb2_grpc.add_FederationServicer_to_server(
            FederationService(self.handlers, self._door.identify, changes, self._threads), self._federation
        )
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
        await self._federation.start()
        await self._operator.start()
        self._fold_wanted.set()
        self._tasks = [asyncio.create_task(job()) for job in (self._tick, self._fold, self._watch_doors)]
        where = _reachable(self._listeners.operator, self.operator_port)
        replace(access, address=where).write(self._store.directory)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def __aexit__(self, *_: object) -> None:
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._farewell()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        OperatorAccess.remove(self._store.directory)
        await asyncio.gather(self._federation.stop(1.0), self._operator.stop(1.0))
        self._threads.shutdown(wait=True)
        self.engine.close()

    async def _farewell(self) -> None:
        """After `puf-server stop`: a moment for waiting clients to fetch the order to leave."""
        if self.engine.state.stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    while self.engine.state.seen:
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
            except Exception as error:
                log.error("state not written", error=str(error))

    async def _watch_doors(self) -> None:
        """Ends calls of those who were revoked, or whose certificate expired, while they last."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                self._door.look_again()
                self._operator_door.look_again()
            except Exception as error:
                log.error("open calls not looked at", exc_info=error)

    async def _fold(self) -> None:
        """Folds rounds as they close, one at a time, away from the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            await self._fold_wanted.wait()
            self._fold_wanted.clear()
            while (current := self.engine.fold_wanted()) is not None:
                try:
                    result = await loop.run_in_executor(self._threads, self.engine.fold, current)
                    await loop.run_in_executor(self._threads, self.engine.folded, result)
                    log.info(
                        "round committed", round=current.number, kind=current.kind, version=self.engine.state.version
                    )
                except Exception as error:
                    # A full disk, mostly. Whatever it is, rounds must not stop being folded when it is over.
                    log.error("round not folded; trying again", round=current.number, error=str(error))
                    await asyncio.sleep(_TICK_SECONDS)
                    if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        with contextlib.suppress(PufError):
                            await loop.run_in_executor(self._threads, self.engine.mend)


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
    store = Store.open(directory)
    if limits:
        changed = store.config.limits.model_copy(update=dict(limits))
        store.config = store.config.model_copy(update={"limits": changed})
    _allow_files(store.config.limits.connections)
    asyncio.run(_serve(store, listeners, announce, tls))


def _allow_files(connections: int) -> None:
    """Each connection is a file; what the system allows, but does not give unasked, is asked for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 512
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        if most < wanted:
            log.warning("fewer open files than connections are allowed", files=most, connections=connections)


async def _serve(store: Store, listeners: Listeners, announce: Path | None, tls: ServerTls | None) -> None:
    async with Server(store, listeners, tls) as server:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stopped.set)
        log.info(
            "serving",
            federation=store.config.title,
            round=server.engine.state.number,
            port=server.port,
            operator_port=server.operator_port,
        )
        if announce is not None:
            announce.write_text(f"{server.port} {server.operator_port}\n")
        await server.stopped.wait()
        log.info("stopping", round=server.engine.state.number)
