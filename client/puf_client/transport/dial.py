"""From what the command line says about the server to a connection: TLS, and by what this client is known."""

from __future__ import annotations

from pathlib import Path

from puf_client.cli.options import Secured
from puf_client.transport.grpc import GrpcTransport
from puf_common.errors import UsageError
from puf_common.files.private import exposed
from puf_common.files.watched import Watched
from puf_common.logging import get_logger
from puf_common.network.addresses import is_loopback
from puf_common.network.tls import ClientTls

__all__ = ["TokenFile", "certified_name", "dial"]

log = get_logger("puf_client.transport.grpc")


class TokenFile:
    """A token as its file holds it now: one that was replaced is used from the next call on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = Watched(self._read, [path])
        self()
        if exposed(path):
            log.warning("others can read the token; run chmod 600 on it", file=str(path))

    def __call__(self) -> str:
        self._file.refresh()
        token, problem = self._file.value
        if problem:
            raise UsageError(problem)
        return token

    def _read(self) -> tuple[str, str]:
        """The token, or the problem with its file."""
        try:
            token = self._path.read_text("ascii").strip()
        except OSError as error:
            return "", f"cannot read --token-file {self._path}: {error.strerror}"
        except UnicodeDecodeError:
            token = ""
        if not token or not token.isprintable() or " " in token:
            return "", f"--token-file {self._path} holds no token: it is the one line that puf-server tokens add shows"
        return token, ""


def dial(options: Secured, *, server: str, name: str, patience: float) -> GrpcTransport:
    """A connection that is not open yet; files that are missing or do not fit are told at once."""
    tls = _tls(options, name)
    if tls is None:
        if options.token_file is not None:
            raise UsageError("a token is sent over TLS only: give --tls-ca as well")
        if not is_loopback(server):
            log.warning("no TLS: whoever is between here and the server can read and change everything", server=server)
        return GrpcTransport(server, name, patience=patience)
    holder = tls.holder()
    if holder is not None and holder.role != "client":
        raise UsageError(f"{options.tls_cert} is an operator's certificate; a client needs one of its own")
    if holder is not None and holder.name != name:
        raise UsageError(f"the certificate is {holder.name}'s, not {name}'s: leave --name away, or give the other's")
    if holder is None and options.token_file is None:
        log.info("neither certificate nor token: only a server that asks for none will answer", server=server)
    token = TokenFile(_for(options.token_file, name)) if options.token_file is not None else None
    return GrpcTransport(server, name, tls=tls, token=token, patience=patience)


def certified_name(options: Secured) -> str:
    """The name in the certificate; empty where none is given, or the path depends on the name."""
    if options.tls_cert is None or "{name}" in str(options.tls_cert):
        return ""
    tls = _tls(options, "")
    holder = tls.holder() if tls else None
    return holder.name if holder else ""


def _tls(options: Secured, name: str) -> ClientTls | None:
    if options.tls_ca is None and options.tls_cert is None and options.tls_key is None:
        if options.tls_server_name:
            raise UsageError("--tls-server-name needs --tls-ca")
        return None
    certificate = _for(options.tls_cert, name) if options.tls_cert else None
    key = _for(options.tls_key, name) if options.tls_key else None
    return ClientTls.load(options.tls_ca, certificate, key, options.tls_server_name)


def _for(path: Path, name: str) -> Path:
    """`certs/{name}.crt` is the file of this client: a fleet shares its flags."""
    return Path(str(path).replace("{name}", name)).expanduser()
