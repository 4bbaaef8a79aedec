"""`puf-server serve`: its settings, and the checks before serving."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_common.network.addresses import parse_address
from puf_common.tracing.process import TraceSettings, traced
from puf_server.cli.place import FILES_HELP, KEYS_HELP, METAVAR, place
from puf_server.core.config import Limits

HERE = "127.0.0.1:7300"
EVERYWHERE = "[::]:7300"


class ServeSettings(TraceSettings):
    """How to serve a federation."""

    model_config = ConfigDict(extra="forbid")

    state: str = Field(
        description="the federation's state directory, or postgresql://USER@HOST/DATABASE with TLS parameters of libpq",
        json_schema_extra={"metavar": METAVAR},
    )
    files: str = Field("", description=FILES_HELP, json_schema_extra={"metavar": METAVAR})
    keys: Path | None = Field(None, description=KEYS_HELP, json_schema_extra={"metavar": "DIR"})
    listen: str = Field(
        "",
        description=f"address for clients; port 0 takes a free one; default {EVERYWHERE} with TLS, {HERE} without",
        json_schema_extra={"metavar": "HOST:PORT"},
    )
    operator: str = Field("127.0.0.1:7301", description="address for operator commands; keep it on this machine")
    tls_cert: Path | None = Field(None, description="the server's certificate, in PEM; read again when it changes")
    tls_key: Path | None = Field(None, description="the key of that certificate")
    client_ca: Path | None = Field(
        None, description="authority of the clients' certificates; without it each client needs a token"
    )
    receipts: Path | None = Field(
        None,
        description="after a restore: directory with receipts (*.json) that were issued since the backup",
        json_schema_extra={"metavar": "DIR"},
    )
    no_receipts: bool = Field(False, description="after a restore: nothing was forgotten since the backup; audited")
    workers: int = Field(1, ge=1, le=64, description="with PostgreSQL: processes that serve on the same ports")
    insecure: bool = Field(False, description="serve without TLS: every caller can claim every name")
    metrics: str = Field(
        "",
        description="address for Prometheus (http://HOST:PORT/metrics), e.g. 127.0.0.1:9300; no metrics without it",
        json_schema_extra={"metavar": "HOST:PORT"},
    )
    metrics_host: list[str] = Field(
        [],
        description="name with a dot under which Prometheus reaches the metrics; may be repeated; IP addresses need none",
        json_schema_extra={"metavar": "NAME"},
    )
    track: str = Field(
        "",
        description="send figures of rounds, and exported models: tensorboard:DIR, mlflow:URI or wandb:PROJECT",
        json_schema_extra={"metavar": "KIND:WHERE"},
    )
    limits: Limits = Limits()
    announce: Path | None = Field(None, description="file for the port numbers, written when the server listens")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level of log lines to show"
    )
    log_format: Literal["auto", "console", "json"] = Field("auto", description="auto: console on a terminal, else JSON")


def run(settings: ServeSettings) -> int:
    """Serves the federation until it is stopped. Returns the exit code."""
    if settings.insecure and (settings.tls_cert or settings.tls_key or settings.client_ca):
        raise UsageError("--insecure and TLS exclude each other: remove --insecure")
    if not settings.insecure and not (settings.tls_cert and settings.tls_key):
        raise UsageError(
            "serving needs --tls-cert and --tls-key (and --client-ca for mTLS); make them with puf-server certs init, server "
            "and client. To serve without TLS, give --insecure"
        )
    directory, database = place(settings.state, settings.files, settings.keys)
    if settings.workers > 1 and not database:
        raise UsageError(
            "--workers needs --state postgresql://...: one process serves a state directory. See docs/postgres.md"
        )
    from puf_common.logging import configure
    from puf_server.maintenance.restore import apply_receipts

    configure(level=settings.log_level, log_format=settings.log_format)
    apply_receipts(directory, settings.receipts, waived=settings.no_receipts, database=database)
    listen = settings.listen or (HERE if settings.insecure else EVERYWHERE)
    if settings.workers == 1:
        serve_one(settings.model_copy(update={"listen": listen}))
        return Exit.OK
    from puf_server.cli.workers import Workers, reserved

    with ExitStack() as stack:
        addresses = {"listen": reserved(listen, stack), "operator": reserved(settings.operator, stack)}
        work = partial(_serve_worker, settings.model_copy(update=addresses))
        return Workers(settings.workers, work, settings.announce).run()


def _serve_worker(settings: ServeSettings, number: int, announce: Callable[[str], object]) -> None:
    """One of several processes on the same ports, in its own process."""
    from puf_common.config.command import guarded
    from puf_common.logging import configure

    # Each process has its own figures. One of them sends those of rounds.
    changes: dict[str, object] = {"track": settings.track if number == 1 else ""}
    if settings.metrics:
        _, port = parse_address(settings.metrics, "--metrics", free_port=True)
        if port:
            changes["metrics"] = f"{settings.metrics.rpartition(':')[0]}:{port + number - 1}"
    configure(level=settings.log_level, log_format=settings.log_format, worker=number)
    sys.exit(guarded(lambda: serve_one(settings.model_copy(update=changes), announce)))


def serve_one(settings: ServeSettings, announce: Callable[[str], object] | None = None) -> int:
    """Serves in this process. `announce` gets the port numbers of a process that shares its ports with others."""
    from puf_common.logging import get_logger
    from puf_common.malloc import keep_freed_memory
    from puf_common.network.addresses import is_loopback
    from puf_common.network.tls import ServerTls
    from puf_server.runtime.server import Addresses, serve
    from puf_server.tracking.trackers import tracker_named

    directory, database = place(settings.state, settings.files, settings.keys)
    keep_freed_memory()
    tracker = tracker_named(settings.track) if settings.track else None
    log = get_logger(__name__)
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = ServerTls(settings.tls_cert, settings.tls_key, settings.client_ca)
        tls.warn()
        log.info("TLS", clients="certificates" if tls.client_ca else "tokens", names=tls.names())
    else:
        log.warning("serving without TLS: every caller can act as any client")
        for address in (settings.listen, settings.operator):
            if not is_loopback(address):
                log.warning("open to the network without TLS", address=address)
    given = {name: getattr(settings.limits, name) for name in settings.limits.model_fields_set}
    addresses = Addresses(
        settings.listen,
        settings.operator,
        settings.metrics,
        tuple(settings.metrics_host),
        shared=announce is not None,
    )
    announced = announce or (settings.announce.write_text if settings.announce is not None else None)
    with traced("puf-server", settings.trace):
        serve(directory, addresses, announced, tls=tls, limits=given, tracker=tracker, database=database)
    return Exit.OK
