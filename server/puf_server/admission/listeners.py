"""How a server's two listeners are locked, and the file that lets its owner's commands in.

`DIR/operator.json` is made by every server process, readable by its owner alone: where the operator port is and, under
TLS, a certificate that this process alone accepts. Whoever may read the state directory may steer the server, nobody else
may; another machine needs a certificate of the clients' authority (`puf-server certs operator`).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
from grpc import aio

from puf_common.errors import StorageCorrupted, UsageError
from puf_common.files.private import write_over
from puf_common.network.addresses import parse_address
from puf_common.network.status import Options, server_options
from puf_common.network.tls import ClientTls, ServerTls
from puf_server.admission.identity import Anybody, Bearer, Certificate, Claimed, Identify, OperatorCertificate
from puf_server.admission.interceptor import Guard
from puf_server.admission.tokens import Revocations, Tokens
from puf_server.core.config import Limits
from puf_server.pki.authority import ephemeral_operator

__all__ = ["Door", "OperatorAccess", "bind", "insecure_doors", "secure_doors"]

_FILE = "operator.json"
_PAUSE = 0.1


@dataclass(frozen=True)
class Door:
    """One listener: who calls, over what, and how much at a time."""

    identify: Identify
    guard: Guard
    limits: Limits
    credentials: grpc.ServerCredentials | None = None

    def server(self) -> aio.Server:
        options: Options = [
            ("grpc.max_concurrent_streams", self.limits.streams),
            ("grpc.max_allowed_incoming_connections", self.limits.connections),
            ("grpc.server_handshake_timeout_ms", round(1000 * self.limits.handshake_seconds)),
            ("grpc.max_connection_idle_ms", round(1000 * self.limits.idle_seconds)),
        ]
        return aio.server(
            options=[*server_options(), *options],
            interceptors=[self.guard],
            # gRPC refuses what is beyond by itself, before it reads a request.
            maximum_concurrent_rpcs=self.limits.calls,
        )

    def look_again(self) -> None:
        self.guard.look_again()


@dataclass(frozen=True)
class OperatorAccess:
    """What operator commands on this machine need to know."""

    address: str
    server_certificate: str = ""
    certificate: str = ""
    key: str = ""

    def write(self, directory: Path) -> None:
        write_over(directory / _FILE, json.dumps(vars(self), indent=1).encode())

    @staticmethod
    def remove(directory: Path) -> None:
        (directory / _FILE).unlink(missing_ok=True)

    @classmethod
    def read(cls, directory: Path, *, patience: float = 0.0) -> OperatorAccess:
        """`patience`: seconds within which a server that is just starting may write its file."""
        path = directory / _FILE
        until = time.monotonic() + patience
        try:
            while not path.exists() and (directory / "federation.json").exists() and time.monotonic() < until:
                time.sleep(_PAUSE)
            return cls(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            raise UsageError(f"no server serves {directory} now (there is no {_FILE} in it)") from None
        except PermissionError:
            raise UsageError(f"{path} is for its owner alone: run this as the user who runs the server") from None
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, TypeError):
            raise StorageCorrupted(f"{path} is damaged; restart the server", file=path) from None

    def tls(self) -> ClientTls | None:
        if not self.certificate:
            return None
        return ClientTls.pinned(Path(self.server_certificate), self.certificate.encode(), self.key.encode())


def insecure_doors(limits: Limits) -> tuple[Door, Door, OperatorAccess]:
    identify, anybody = Claimed(), Anybody()

    def never() -> object:
        return None

    return (
        Door(identify, Guard(identify, never, limits, strict=False), limits),
        Door(anybody, Guard(anybody, never, limits, strict=False), limits),
        OperatorAccess(""),
    )


def secure_doors(directory: Path, tls: ServerTls, limits: Limits) -> tuple[Door, Door, OperatorAccess]:
    """Doors for clients and for the operator: mTLS where clients have an authority, else TLS and a token each."""
    revocations, tokens = Revocations(directory), Tokens(directory)
    identify: Identify = Certificate(revocations) if tls.client_ca else Bearer(tokens, revocations)
    operator: Identify = OperatorCertificate(revocations)
    root, certificate, key = ephemeral_operator()

    def changes() -> object:
        return revocations.seen(), tokens.seen()

    return (
        Door(identify, Guard(identify, changes, limits), limits, tls.credentials()),
        Door(operator, Guard(operator, changes, limits), limits, replace(tls, more_roots=root).credentials()),
        OperatorAccess("", str(tls.certificate.expanduser().resolve()), certificate.decode(), key.decode()),
    )


def bind(server: aio.Server, door: Door, address: str) -> int:
    """The port that the server listens on from now on."""
    parse_address(address, "cannot listen:", free_port=True)
    try:
        if door.credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, door.credentials)
    except RuntimeError:
        port = 0
    if not port:
        raise UsageError(f"cannot listen on {address}: the port is in use, or the address is not this machine's")
    return port
