"""The server process: signals, limits of the operating system, and the announcement of the ports."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from puf_common.logging import get_logger
from puf_common.network.tls import ServerTls
from puf_server import failpoints
from puf_server.runtime.server import Addresses, Server
from puf_server.storage.state_store import Store

__all__ = ["serve"]

log = get_logger(__name__)


def serve(
    directory: Path,
    addresses: Addresses,
    announce: Path | None = None,
    *,
    tls: ServerTls | None = None,
    limits: Mapping[str, Any] | None = None,
) -> None:
    """Serves until the operator stops the server or a signal arrives.

    The file `announce` gets the port numbers once the server listens. `limits` replace those of the federation for this
    process.
    """
    failpoints.arm_from_environment()
    asyncio.run(_serve(directory, addresses, announce, tls, limits or {}))


async def _serve(
    directory: Path, addresses: Addresses, announce: Path | None, tls: ServerTls | None, limits: Mapping[str, Any]
) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Before the state is opened: a signal during recovery also ends the process in order.
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    store = await asyncio.to_thread(Store.open, directory)
    if limits:
        changed = store.config.limits.model_copy(update=dict(limits))
        store.config = store.config.model_copy(update={"limits": changed})
    _raise_file_limit(store.config.limits.connections)
    async with Server(store, addresses, tls, stopped=stopped) as server:
        metrics_port = [server.metrics_port] if server.metrics_port else []
        log.info(
            "serving",
            federation=store.config.title,
            round=server.engine.state.number,
            port=server.port,
            operator_port=server.operator_port,
            **({"metrics_port": server.metrics_port} if metrics_port else {}),
        )
        if announce is not None:
            ports = " ".join(map(str, [server.port, server.operator_port, *metrics_port]))
            await asyncio.to_thread(announce.write_text, f"{ports}\n")
        await server.stopped.wait()
        log.info("stopping", round=server.engine.state.number)


def _raise_file_limit(connections: int) -> None:
    """Raises the soft limit of open files as far as the hard limit allows: each connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 512
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        if most < wanted:
            log.warning("fewer open files than connections are allowed", files=most, connections=connections)
