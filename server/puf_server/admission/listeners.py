"""The two listeners of a server, for clients and for the operator: identities, limits and TLS."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import grpc
from grpc import aio

from puf_common.errors import UsageError
from puf_common.network.addresses import parse_address
from puf_common.network.certificates import Role
from puf_common.network.status import Options, server_options
from puf_common.network.tls import ServerTls
from puf_server.admission.access_file import OperatorAccess, shared_access
from puf_server.admission.identity import AnyOperator, CertificateIdentity, ClaimedIdentity, Identify, TokenIdentity
from puf_server.admission.interceptor import AdmissionInterceptor
from puf_server.admission.revocations import Revocations
from puf_server.admission.roles import certified_role, claimed_role
from puf_server.admission.tokens import Tokens
from puf_server.core.config import Limits
from puf_server.pki.authority import ephemeral_access


@dataclass(frozen=True)
class Listener:
    """How one listener identifies callers, limits them and encrypts."""

    identify: Identify
    interceptor: AdmissionInterceptor
    limits: Limits
    credentials: grpc.ServerCredentials | None = None

    def server(self, shares_port: bool = False) -> aio.Server:
        """A gRPC server without services that is not bound yet. `shares_port`: with other processes of this federation."""
        options: Options = [
            ("grpc.max_concurrent_streams", self.limits.streams),
            ("grpc.max_allowed_incoming_connections", self.limits.connections),
            ("grpc.server_handshake_timeout_ms", round(1000 * self.limits.handshake_seconds)),
            ("grpc.max_connection_idle_ms", round(1000 * self.limits.idle_seconds)),
        ]
        return aio.server(
            options=[*server_options(shares_port=shares_port), *options],
            interceptors=[self.interceptor],
            # gRPC refuses calls beyond this number before it reads their request.
            maximum_concurrent_rpcs=self.limits.calls,
        )

    def bind(self, server: aio.Server, address: str) -> int:
        """Binds the server to HOST:PORT and returns the port. Port 0 takes a free one."""
        parse_address(address, "cannot listen:", free_port=True)
        try:
            if self.credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self.credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise UsageError(f"cannot listen on {address}: the port is in use, or the address is not this machine's")
        return port


# What the access file of each role contains; the address is not known yet.
Accesses = dict[Role, OperatorAccess]


def insecure_listeners(limits: Limits) -> tuple[Listener, Listener, Accesses]:
    """Listeners without TLS: the server accepts every name that a caller claims."""
    client, operator = ClaimedIdentity(), AnyOperator()
    return (
        Listener(client, AdmissionInterceptor(client, limits=limits), limits),
        Listener(operator, AdmissionInterceptor(operator, limits=limits, role=claimed_role), limits),
        {"operator": OperatorAccess(""), "viewer": OperatorAccess("")},
    )


def secure_listeners(
    directory: Path, tls: ServerTls, limits: Limits, first: bool | None = None
) -> tuple[Listener, Listener, Accesses]:
    """Listeners with TLS. Clients need a certificate if the server has a client authority, otherwise a token.

    `first`: this process is the first of several that serve the federation; None: it is the only one.
    """
    revocations, tokens = Revocations(directory), Tokens(directory)
    client: Identify = CertificateIdentity(revocations) if tls.client_ca else TokenIdentity(tokens, revocations)
    operator = CertificateIdentity(revocations, "operator", "viewer")
    root, local = ephemeral_access() if first is None else shared_access(directory, anew=first)
    server = str(tls.certificate.expanduser().resolve())

    def refresh() -> object:
        return revocations.refresh(), tokens.refresh()

    operator_tls = replace(tls, more_roots=root)
    return (
        Listener(client, AdmissionInterceptor(client, refresh, limits), limits, tls.credentials()),
        Listener(
            operator,
            AdmissionInterceptor(operator, refresh, limits, certified_role),
            limits,
            operator_tls.credentials(),
        ),
        {role: OperatorAccess("", server, shown.decode(), key.decode()) for role, (shown, key) in local.items()},
    )
