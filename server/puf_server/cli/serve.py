"""What `puf-server serve` can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from puf_common.errors import UsageError
from puf_server.core.config import Limits

__all__ = ["ServeSettings", "run"]

HERE = "127.0.0.1:7300"
EVERYWHERE = "[::]:7300"


class ServeSettings(BaseModel):
    """How to serve a federation."""

    model_config = ConfigDict(extra="forbid")

    state: Path = Field(description="the federation's state directory")
    listen: str = Field(
        "",
        description=f"address for clients; port 0 takes a free one; unless given {EVERYWHERE} with TLS, {HERE} without",
        json_schema_extra={"metavar": "HOST:PORT"},
    )
    operator: str = Field("127.0.0.1:7301", description="address for operator commands; keep it on this machine")
    tls_cert: Path | None = Field(None, description="the server's certificate, in PEM; read anew when it changes")
    tls_key: Path | None = Field(None, description="the key of that certificate")
    client_ca: Path | None = Field(
        None, description="authority whose certificates let clients in; without it, clients need a token each"
    )
    receipts: Path | None = Field(
        None,
        description="after a restore: directory with receipts (*.json) handed out since the backup was made",
        json_schema_extra={"metavar": "DIR"},
    )
    no_receipts: bool = Field(False, description="after a restore: nothing was forgotten since the backup; audited")
    insecure: bool = Field(False, description="serve without TLS: everybody is who they say they are")
    metrics: str = Field(
        "",
        description="address for Prometheus (http://HOST:PORT/metrics), e.g. 127.0.0.1:9300; unless given there is none",
        json_schema_extra={"metavar": "HOST:PORT"},
    )
    limits: Limits = Limits()
    announce: Path | None = Field(None, description="file that gets the port numbers once the server listens")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least important log lines to show"
    )
    log_format: Literal["auto", "console", "json"] = Field("auto", description="auto: console on a terminal, else JSON")


def run(settings: ServeSettings) -> None:
    if settings.insecure and (settings.tls_cert or settings.tls_key or settings.client_ca):
        raise UsageError("--insecure and TLS exclude each other: leave --insecure away")
    if not settings.insecure and not (settings.tls_cert and settings.tls_key):
        raise UsageError(
            "serving needs --tls-cert and --tls-key (and --client-ca for mTLS): puf-server certs init, server and client "
            "make them; serving without TLS must be asked for by name: --insecure"
        )
    from puf_common.logging import configure, get_logger
    from puf_common.malloc import keep_freed_memory
    from puf_common.network.addresses import is_loopback
    from puf_common.network.tls import ServerTls
    from puf_server.runtime.process import serve
    from puf_server.runtime.server import Addresses

    configure(level=settings.log_level, log_format=settings.log_format)
    keep_freed_memory()
    log = get_logger(__name__)
    federation = settings.listen or (HERE if settings.insecure else EVERYWHERE)
    addresses = Addresses(federation, settings.operator, settings.metrics)
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = ServerTls(settings.tls_cert, settings.tls_key, settings.client_ca)
        tls.warn()
        log.info("TLS", clients="certificates" if tls.client_ca else "tokens", names=tls.names())
    else:
        log.warning("serving without TLS: anybody who reaches the port can act as any client")
        for address in (addresses.federation, addresses.operator):
            if not is_loopback(address):
                log.warning("open to the network without TLS", address=address)
    from puf_server.maintenance.backup import answer_for_receipts

    answer_for_receipts(settings.state, settings.receipts, waived=settings.no_receipts)
    given = {name: getattr(settings.limits, name) for name in settings.limits.model_fields_set}
    serve(settings.state, addresses, settings.announce, tls=tls, limits=given)
