"""One federation being served: two listeners, health, reflection, background tasks, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from puf_common.logging import get_logger
from puf_common.network.tls import ServerTls
from puf_common.v1 import operator_pb2_grpc
from puf_server import failpoints
from puf_server.admission.access_file import OperatorAccess
from puf_server.admission.listeners import Accesses, Listener, insecure_listeners, secure_listeners
from puf_server.admission.tokens import Tokens
from puf_server.core import roster
from puf_server.core.state.state import State
from puf_server.engine.clock import FederationClock
from puf_server.engine.engine import Engine
from puf_server.engine.troubles import Trouble
from puf_server.rpc.audit_feed import AuditFeed
from puf_server.rpc.calls import Threads
from puf_server.rpc.federation import FederationService
from puf_server.rpc.notifier import Notifier
from puf_server.rpc.operator import OperatorService
from puf_server.rpc.requests import Handlers
from puf_server.runtime.fold_loop import FoldLoop, RoundTimes
from puf_server.runtime.metrics import Metrics
from puf_server.runtime.metrics_http import MetricsEndpoint
from puf_server.runtime.traces import StateTraces
from puf_server.storage.state_store import Store
from puf_server.tracking.feed import TrackingFeed
from puf_server.tracking.trackers import Tracker

_TICK_SECONDS = 0.5
_LEAVE_SECONDS = 3.0
# Longest time that a call lasts after its caller was revoked.
_RECHECK_SECONDS = 0.25
# Seconds after which a failed deletion of files is repeated.
_DELETE_SECONDS = 2.0
# Longest time that a forgotten client's token lasts after its grace time.
_TOKEN_SECONDS = 3600.0
# Open files besides connections: updates that arrive, models, the files of a fold.
_OTHER_FILES = 512
_SERVICES = ("puf.v1.Federation", "puf.v1.Operator")
log = get_logger(__name__)


@dataclass(frozen=True)
class Addresses:
    """Where to listen, as HOST:PORT; port 0 takes a free one. Without an address there are no metrics."""

    federation: str
    operator: str
    metrics: str = ""
    # Names in the requests of scrapers, besides IP addresses and names without a dot.
    metrics_hosts: tuple[str, ...] = ()
    # Other processes of the same federation listen on the same two ports.
    shared: bool = False


class Server:
    """Serves one federation inside `async with`. Without `tls` the server accepts every name that a caller claims."""

    def __init__(
        self,
        store: Store,
        addresses: Addresses,
        tls: ServerTls | None = None,
        stopped: asyncio.Event | None = None,
        tracker: Callable[[str], Tracker] | None = None,
    ) -> None:
        """`tracker` opens a tracker for the federation's id."""
        self._store = store
        self._addresses = addresses
        self._tls = tls
        self._tracker = tracker
        self._threads = Threads()
        self.stopped = stopped or asyncio.Event()

    async def __aenter__(self) -> Server:
        try:
            await self._start()
        except BaseException:
            self._threads.shutdown()
            self._store.close()
            raise
        return self

    async def _start(self) -> None:
        # First: a process that joins reads what the first one writes here before its state is recovered.
        self._clients, self._operators, accesses = await self._threads.run(self._make_listeners)
        clock = FederationClock(self._store.database.wall_clock(failpoints.wall_clock()))
        self.engine = await self._threads.run(Engine, self._store, clock)
        self.handlers = Handlers(self.engine)
        self.metrics = Metrics(self.handlers)
        self._tracking = TrackingFeed(self.engine, self._tracker) if self._tracker else None
        self._traces = StateTraces(self.engine.config.id)
        self._folding = FoldLoop(self.engine, self._threads, self._round_took)
        self._audit = AuditFeed(self._store.database, self._threads)
        loop, notifier = asyncio.get_running_loop(), Notifier(self.engine.state)

        def changed(before: State, after: State) -> None:
            notifier.notify(after)
            loop.call_soon_threadsafe(self._folding.wake)
            loop.call_soon_threadsafe(self._audit.wake)
            if self._tracking is not None:
                self._tracking.wake()
            if before.tickets is not after.tickets:
                loop.call_soon_threadsafe(self._traces.changed, before, after)
            if before.members is not after.members:
                loop.call_soon_threadsafe(self._calls.members_changed)
            if after.stopping:
                # The operator has stopped another server of this federation, or this one.
                loop.call_soon_threadsafe(self.stopped.set)

        self._serve_calls(notifier)
        self.engine.subscribe(changed)
        # What another server has changed since the state was read.
        notifier.notify(self.engine.state)
        self.port = self._clients.bind(self._federation, self._addresses.federation)
        self.operator_port = self._operators.bind(self._operator, self._addresses.operator)
        address, hosts = self._addresses.metrics, self._addresses.metrics_hosts
        self._endpoint = MetricsEndpoint(self.metrics.registry, address, hosts) if address else None
        self.metrics_port = self._endpoint.port if self._endpoint else 0
        await self._federation.start()
        await self._operator.start()
        self._folding.wake()
        self._folder = asyncio.create_task(self._folding.run())
        tasks = (self._tick, self._recheck_calls, self._drop_tokens, self._delete_again)
        self._tasks = [asyncio.create_task(_repeat(task)) for task in tasks]
        address = _reachable(self._addresses.operator, self.operator_port)
        for role, access in accesses.items():
            await self._threads.run(replace(access, address=address).write, self._store.directory, role)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    def _round_took(self, times: RoundTimes) -> None:
        self.metrics.round_took(times)
        self._traces.round_took(self.engine.state, times)

    def _make_listeners(self) -> tuple[Listener, Listener, Accesses]:
        limits = self._store.config.limits
        if self._tls is None:
            return insecure_listeners(limits)
        first = not self._store.joined if self._store.database.owner else None
        return secure_listeners(self._store.directory, self._tls, limits, first)

    def _serve_calls(self, notifier: Notifier) -> None:
        """Makes the two gRPC servers with their services."""
        shared = self._addresses.shared
        self._federation, self._operator = self._clients.server(shared), self._operators.server(shared)
        self._calls = FederationService(
            self.handlers, self._clients.identify, notifier, self._threads, self.metrics.update_refused
        )
        self._calls.add_to(self._federation)
        operator = OperatorService(self.handlers, self._threads, self._audit)
        operator_pb2_grpc.add_OperatorServicer_to_server(operator, self._operator)
        self._health = health_aio.HealthServicer()
        health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        for server, service in zip((self._federation, self._operator), _SERVICES, strict=True):
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            reflection.enable_server_reflection((service, reflection.SERVICE_NAME, health), server)

    async def __aexit__(self, *_: object) -> None:
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._let_clients_leave()
        for task in self._tasks:
            task.cancel()
        # A round that is being summed is committed: otherwise the next start would sum it again. New calls are refused
        # meanwhile; open calls get one second to end.
        self._folding.end()
        self._audit.end()
        self._calls.end()
        if not self.engine.shared or self.engine.state.stopping:
            await self._threads.run(OperatorAccess.remove, self._store.directory)
        await asyncio.gather(
            self._folder, self._federation.stop(1.0), self._operator.stop(1.0), *self._tasks, return_exceptions=True
        )
        if self._endpoint is not None:
            await self._threads.run(self._endpoint.close)
        if self._tracking is not None:
            await self._threads.run(self._tracking.close)
        self._threads.shutdown()
        self.engine.close()

    async def _let_clients_leave(self) -> None:
        """After `puf-server stop`: gives waiting clients a few seconds to receive the order to leave."""
        if self.engine.state.stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    while self.engine.presence.present():
                        await asyncio.sleep(0.05)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", *_SERVICES):
            await self._health.set(name, status)

    async def _tick(self) -> float:
        """Applies deadlines and absences."""
        try:
            await self._threads.run(self.engine.tick)
            await self._threads.run(self.handlers.uploads.drop_unwanted)
        except Exception as error:
            log.error("state not written", error=str(error))
            self.engine.troubles.report(Trouble.STATE, f"the state cannot be written: {error}")
        return _TICK_SECONDS

    async def _delete_again(self) -> float:
        """Repeats a deletion of files that failed."""
        if Trouble.FILES in self.engine.troubles.open():
            await self._threads.run_on_files(self.engine.delete_orphans)
        return _DELETE_SECONDS

    async def _recheck_calls(self) -> float:
        """Ends open calls of clients that were revoked or whose credential expired."""
        try:
            await self._clients.interceptor.recheck()
            await self._operators.interceptor.recheck()
        except Exception as error:
            log.error("open calls not checked", exc_info=error)
        return _RECHECK_SECONDS

    async def _drop_tokens(self) -> float:
        """Deletes the tokens of forgotten clients after their grace time."""
        gone = roster.past_grace(self.engine.state, self.engine.config, self.engine.clock())
        try:
            for name in await self._threads.run(lambda: Tokens(self._store.directory).drop(gone)):
                log.info("token of a forgotten client deleted", client=name)
        except Exception as error:
            log.error("tokens of forgotten clients not deleted", error=str(error))
        return _TOKEN_SECONDS


async def _repeat(work: Callable[[], Coroutine[Any, Any, float]]) -> None:
    """Runs the work for ever. It returns the seconds until its next run."""
    while True:
        await asyncio.sleep(await work())


def _reachable(address: str, port: int) -> str:
    """The address of a listener for commands on this machine."""
    host = address.rpartition(":")[0]
    return f"127.0.0.1:{port}" if host in ("", "0.0.0.0", "[::]") else f"{host}:{port}"  # noqa: S104


def serve(
    directory: Path,
    addresses: Addresses,
    announce: Callable[[str], object] | None = None,
    *,
    tls: ServerTls | None = None,
    limits: Mapping[str, Any] | None = None,
    tracker: Callable[[str], Tracker] | None = None,
    database: str = "",
) -> None:
    """Serves until the operator stops the server or a signal arrives.

    `announce` gets the port numbers once the server listens. `limits` replace those of the federation for this
    process. `tracker` gets the figures of committed rounds. `database` is the address of a PostgreSQL database.
    """
    failpoints.arm_from_environment()
    asyncio.run(
        _serve(lambda: Store.open(directory, database=database), addresses, announce, tls, limits or {}, tracker)
    )


async def _serve(
    open_store: Callable[[], Store],
    addresses: Addresses,
    announce: Callable[[str], object] | None,
    tls: ServerTls | None,
    limits: Mapping[str, Any],
    tracker: Callable[[str], Tracker] | None,
) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Before the state is opened: a signal during recovery also ends the process in order.
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    store = await asyncio.to_thread(open_store)
    if limits:
        changed = store.config.limits.model_copy(update=dict(limits))
        store.config = store.config.model_copy(update={"limits": changed})
    limits_set = store.config.limits
    fitting = _raise_file_limit(limits_set.connections)
    if fitting < limits_set.connections:
        fewer = limits_set.model_copy(update={"connections": fitting})
        store.config = store.config.model_copy(update={"limits": fewer})
    async with Server(store, addresses, tls, stopped, tracker) as server:
        ports = {"port": server.port, "operator_port": server.operator_port}
        if server.metrics_port:
            ports["metrics_port"] = server.metrics_port
        log.info("serving", federation=store.config.title, round=server.engine.state.number, **ports)
        if announce is not None:
            written = " ".join(map(str, ports.values()))
            await asyncio.to_thread(announce, f"{written}\n")
        await server.stopped.wait()
        log.info("stopping", round=server.engine.state.number)


def _raise_file_limit(connections: int) -> int:
    """Raises the soft limit of open files as far as the hard limit allows: each connection is a file.

    Returns how many connections each of the two listeners may accept, so that files for updates and models remain.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    fitting = min(connections, max(1, (max(soft, most) - _OTHER_FILES) // 2))
    if fitting < connections:
        log.warning("the limit of open files allows fewer connections", files=most, connections=fitting)
    return fitting
