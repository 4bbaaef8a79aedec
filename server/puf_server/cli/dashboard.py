"""`puf-server dashboard`: its settings, and the checks before serving."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from puf_common.errors import UsageError
from puf_common.files.private import exposed, write_new
from puf_common.network.addresses import is_loopback, parse_address
from puf_common.network.tls import ClientTls
from puf_server.admission.access_file import OperatorAccess
from puf_server.cli.connection import OPERATOR

if TYPE_CHECKING:
    from puf_server.dashboard.upstream import LookUp

LISTEN = "127.0.0.1:7302"
_SHORTEST_TOKEN = 20


class DashboardSettings(BaseModel):
    """How to show a federation in the browser."""

    model_config = ConfigDict(extra="forbid")

    state: Path | None = Field(None, description="the federation's state directory, on the server's machine")
    operator: str = Field(
        "",
        description=f"operator port of the server; default: as in the state directory, else {OPERATOR}",
        json_schema_extra={"metavar": "HOST:PORT"},
    )
    tls_ca: Path | None = Field(None, description="from another machine: authority of the server's certificate")
    tls_cert: Path | None = Field(None, description="a viewer's certificate (puf-server certs viewer)")
    tls_key: Path | None = Field(None, description="its key")
    tls_server_name: str = Field(
        "", description="name in the server's certificate", json_schema_extra={"metavar": "HOST"}
    )
    web: str = Field(
        LISTEN,
        description="address for browsers; port 0 takes a free one; any address but loopback needs TLS and a token",
        json_schema_extra={"metavar": "HOST:PORT"},
    )
    web_cert: Path | None = Field(None, description="certificate for browsers, in PEM")
    web_key: Path | None = Field(None, description="the key of that certificate")
    web_token_file: Path | None = Field(
        None, description="file with the token that browsers must show as password; made if it does not exist"
    )
    allow_host: list[str] = Field([], description="host name under which browsers reach the dashboard; may be repeated")
    announce: Path | None = Field(None, description="file for the port number, written when the dashboard listens")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level of log lines to show"
    )
    log_format: Literal["auto", "console", "json"] = Field("auto", description="auto: console on a terminal, else JSON")


def run(settings: DashboardSettings) -> None:
    """Serves the dashboard until it is stopped."""
    try:
        from puf_server.dashboard.app import WebTls, serve
        from puf_server.dashboard.security import Access, allowed_hosts
    except ModuleNotFoundError as error:
        raise UsageError(f"the dashboard needs {error.name}: pip install 'puf-fl[dashboard]'") from None
    from puf_common.logging import configure

    configure(level=settings.log_level, log_format=settings.log_format)
    tls = None
    if settings.web_cert is not None and settings.web_key is not None:
        tls = WebTls(settings.web_cert.expanduser(), settings.web_key.expanduser())
        # Reports files that are missing or do not fit before the port is opened.
        ClientTls.load(tls.certificate, tls.certificate, tls.key)
    elif settings.web_cert or settings.web_key:
        raise UsageError("--web-cert and --web-key go together: the certificate and its key")
    if not is_loopback(settings.web) and (tls is None or settings.web_token_file is None):
        raise UsageError(
            f"{settings.web} can be reached from other machines: give --web-cert, --web-key and --web-token-file, or listen "
            f"on loopback ({LISTEN})"
        )
    host = parse_address(settings.web, "cannot listen:", free_port=True).host
    hosts = allowed_hosts(host, settings.allow_host)
    if not hosts:
        raise UsageError("say under which name browsers reach the dashboard: --allow-host HOST, may be repeated")
    token = _token(settings.web_token_file) if settings.web_token_file is not None else ""
    serve(_look_up(settings), settings.web, Access(hosts, tls is not None, token), tls, settings.announce)


def _look_up(settings: DashboardSettings) -> LookUp:
    """Finds address and credentials of the operator port, again after every restart of the server."""
    if settings.tls_ca or settings.tls_cert or settings.tls_key:
        tls = ClientTls.load(settings.tls_ca, settings.tls_cert, settings.tls_key, settings.tls_server_name)
        holder = tls.holder()
        if holder is None or holder.role != "viewer":
            raise UsageError("the dashboard needs a viewer's certificate in --tls-cert: puf-server certs viewer")
        return lambda: (settings.operator or OPERATOR, tls)
    state = settings.state
    if state is None:
        return lambda: (settings.operator or OPERATOR, None)
    if not (state / "federation.json").exists():
        raise UsageError(f"{state} holds no federation; puf-server init makes one")

    def look_up() -> tuple[str, ClientTls | None]:
        access = OperatorAccess.read(state, "viewer")
        return settings.operator or access.address, access.tls()

    return look_up


def _token(file: Path) -> str:
    """The token in the file. A file that does not exist gets a new token."""
    if not file.exists():
        write_new(file, f"{secrets.token_urlsafe(32)}\n".encode())
    if exposed(file):
        raise UsageError(f"other users can read {file}: run chmod 600 on it")
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from None
    if len(token) < _SHORTEST_TOKEN:
        raise UsageError(f"the token in {file} is too short: delete the file, and a new one is made")
    return token
