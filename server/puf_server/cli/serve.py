"""`puf-server serve`: its settings, and the checks before serving."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from puf_common.errors import UsageError
from puf_common.tracing.process import TraceSettings, traced
from puf_server.cli.place import FILES_HELP, KEYS_HELP, METAVAR, place
from puf_server.core.config import Limits

HERE = "127.0.0.1:7300"
EVERYWHERE = "[::]:7300"
_STANDBY_SECONDS = 1.0


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
    standby: bool = Field(
        False, description="with PostgreSQL: wait while another server serves, and take its place when it ends"
    )
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


def run(settings: ServeSettings) -> None:
    """Serves the federation until it is stopped."""
    if settings.insecure and (settings.tls_cert or settings.tls_key or settings.client_ca):
        raise UsageError("--insecure and TLS exclude each other: remove --insecure")
    if not settings.insecure and not (settings.tls_cert and settings.tls_key):
        raise UsageError(
            "serving needs --tls-cert and --tls-key (and --client-ca for mTLS); make them with puf-server certs init, server "
            "and client. To serve without TLS, give --insecure"
        )
    from puf_common.logging import configure, get_logger
    from puf_common.malloc import keep_freed_memory
    from puf_common.network.addresses import is_loopback
    from puf_common.network.tls import ServerTls
    from puf_server.maintenance.restore import apply_receipts
    from puf_server.runtime.server import Addresses, serve
    from puf_server.tracking.trackers import tracker_named

    directory, database = place(settings.state, settings.files, settings.keys)
    if settings.standby and not database:
        raise UsageError("--standby needs --state postgresql://...: one machine has one server of a state directory")
    configure(level=settings.log_level, log_format=settings.log_format)
    keep_freed_memory()
    tracker = tracker_named(settings.track) if settings.track else None
    log = get_logger(__name__)
    federation = settings.listen or (HERE if settings.insecure else EVERYWHERE)
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = ServerTls(settings.tls_cert, settings.tls_key, settings.client_ca)
        tls.warn()
        log.info("TLS", clients="certificates" if tls.client_ca else "tokens", names=tls.names())
    else:
        log.warning("serving without TLS: every caller can act as any client")
        for address in (federation, settings.operator):
            if not is_loopback(address):
                log.warning("open to the network without TLS", address=address)
    given = {name: getattr(settings.limits, name) for name in settings.limits.model_fields_set}
    addresses = Addresses(federation, settings.operator, settings.metrics, tuple(settings.metrics_host))

    def serve_now() -> None:
        apply_receipts(directory, settings.receipts, waived=settings.no_receipts, database=database)
        serve(directory, addresses, settings.announce, tls=tls, limits=given, tracker=tracker, database=database)

    with traced("puf-server", settings.trace):
        if settings.standby:
            _in_turn(serve_now)
        else:
            serve_now()


def _in_turn(serve: Callable[[], None]) -> None:
    """Serves once no other server does."""
    from puf_common.logging import get_logger
    from puf_server.storage.state_database import AlreadyServed, DatabaseBusy

    log, waiting = get_logger(__name__), False
    while True:
        try:
            serve()
            return
        except (AlreadyServed, DatabaseBusy) as error:
            if not waiting:
                log.info("standing by", why=error.message)
            waiting = True
        time.sleep(_STANDBY_SECONDS)
