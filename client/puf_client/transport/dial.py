"""A connection from the settings of the command line: TLS files, token file and the client's name."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from puf_client.transport.grpc import GrpcTransport
from puf_client.transport.retry import RetryPolicy
from puf_common.errors import UsageError
from puf_common.files.private import exposed
from puf_common.files.watched import Watched
from puf_common.logging import get_logger
from puf_common.network.addresses import is_loopback
from puf_common.network.tls import ClientTls

log = get_logger("puf_client.transport.grpc")


class Credentials(Protocol):
    """Settings that say how the client proves its identity. `{name}` in a path stands for the client's name."""

    @property
    def tls_ca(self) -> Path | None: ...
    @property
    def tls_cert(self) -> Path | None: ...
    @property
    def tls_key(self) -> Path | None: ...
    @property
    def tls_server_name(self) -> str: ...
    @property
    def token_file(self) -> Path | None: ...


class TokenFile:
    """The token that a file holds now. A replaced file takes effect at the next call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = Watched(self._read, [path])
        self()
        if exposed(path):
            log.warning("other users can read the token; run chmod 600 on the file", file=str(path))

    def __call__(self) -> str:
        self._file.refresh()
        token, problem = self._file.value
        if problem:
            raise UsageError(problem)
        return token

    def _read(self) -> tuple[str, str]:
        """Returns the token, or the problem with its file."""
        try:
            token = self._path.read_text("ascii").strip()
        except OSError as error:
            return "", f"cannot read --token-file {self._path}: {error.strerror}"
        except UnicodeDecodeError:
            token = ""
        if not token or not token.isprintable() or " " in token:
            return "", (
                f"--token-file {self._path} holds no token: it must hold the one line that `puf-server tokens add` prints"
            )
        return token, ""


def dial(credentials: Credentials, *, server: str, name: str, patience: float) -> GrpcTransport:
    """Returns a connection that is not open yet. Raises for missing or unsuitable files."""
    retry = RetryPolicy(patience)
    tls = _tls(credentials, name)
    if tls is None:
        if credentials.token_file is not None:
            raise UsageError("a token is sent over TLS only: add --tls-ca")
        if not is_loopback(server):
            log.warning("no TLS: the network between client and server can read and change all data", server=server)
        return GrpcTransport(server, name, retry=retry)
    holder = tls.holder()
    if holder is not None and holder.role != "client":
        raise UsageError(f"{credentials.tls_cert} is an operator's certificate; use the client's certificate")
    if holder is not None and holder.name != name:
        raise UsageError(
            f"the certificate is for {holder.name}, not for {name}: omit --name, or use the certificate of {name}"
        )
    if holder is None and credentials.token_file is None:
        log.info("no certificate and no token: only a server without client authentication will answer", server=server)
    token_file = _path_for(credentials.token_file, name)
    return GrpcTransport(server, name, tls=tls, token=TokenFile(token_file) if token_file else None, retry=retry)


def certified_name(credentials: Credentials) -> str:
    """Returns the name in the certificate, or "" without a certificate or when its path depends on the name."""
    if credentials.tls_cert is None or "{name}" in str(credentials.tls_cert):
        return ""
    tls = _tls(credentials, "")
    holder = tls.holder() if tls else None
    return holder.name if holder else ""


def _tls(credentials: Credentials, name: str) -> ClientTls | None:
    if credentials.tls_ca is None and credentials.tls_cert is None and credentials.tls_key is None:
        if credentials.tls_server_name:
            raise UsageError("--tls-server-name needs --tls-ca")
        return None
    certificate, key = _path_for(credentials.tls_cert, name), _path_for(credentials.tls_key, name)
    return ClientTls.load(credentials.tls_ca, certificate, key, credentials.tls_server_name)


def _path_for(path: Path | None, name: str) -> Path | None:
    """The path for this client: `certs/{name}.crt` lets all clients of a fleet share one setting."""
    return None if path is None else Path(str(path).replace("{name}", name)).expanduser()
