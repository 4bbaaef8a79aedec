"""The identity of a caller. All authentication is here; the rest of the server works with names.

Under TLS the certificate or the token is the identity. A name that the caller claims in its metadata is ignored then.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

from cryptography import x509
from grpc import aio

from puf_common.errors import InvalidArgument, NotAuthenticated
from puf_common.names import check_name
from puf_common.network.certificates import Holder, Role, holder_of
from puf_common.network.status import IDENTITY_KEY, TOKEN_KEY
from puf_server.admission.revocations import Revocations
from puf_server.admission.tokens import Tokens

Context = aio.ServicerContext[Any, Any]

_SCHEME = "bearer "
_LONGEST_TOKEN = 200


class Identify(Protocol):
    """Returns the caller's name, or raises NotAuthenticated. Works in memory: it is repeated while a call lasts."""

    def __call__(self, context: Context) -> str: ...


class ClaimedIdentity:
    """Without TLS: the name in the caller's metadata. For loopback and tests only."""

    def __call__(self, context: Context) -> str:
        values = metadata(context, IDENTITY_KEY)
        if len(values) != 1:
            raise NotAuthenticated(f"the call names no client: send the metadata key {IDENTITY_KEY} once")
        return check_name(values[0], InvalidArgument)


class AnyOperator:
    """Without TLS: every caller of the operator port is the operator."""

    def __call__(self, context: Context) -> str:
        return "operator"


class CertificateIdentity:
    """mTLS: the caller that the certificate names. `roles` are those that the port accepts, by default only clients."""

    def __init__(self, revocations: Revocations, *roles: Role) -> None:
        self._revocations = revocations
        self._roles = roles or ("client",)

    def __call__(self, context: Context) -> str:
        holder = holder_in(context)
        if holder.role not in self._roles:
            raise NotAuthenticated(
                f"the certificate of {holder.name} is for a{'n' * (holder.role == 'operator')} {holder.role}; this port "
                f"needs one of a{'n' * (self._roles[0] == 'operator')} {self._roles[0]} (puf-server certs {self._roles[0]})"
            )
        # An operator and a client may have the same name. Of an operator only key and serial can be revoked.
        self._revocations.require_not_revoked(holder.name if holder.role == "client" else "", holder)
        # Open calls are counted by name. A viewer must not use up those of an operator.
        return f"viewer {holder.name}" if holder.role == "viewer" else holder.name


class TokenIdentity:
    """TLS with tokens: the client that the caller's token belongs to."""

    def __init__(self, tokens: Tokens, revocations: Revocations) -> None:
        self._tokens = tokens
        self._revocations = revocations

    def __call__(self, context: Context) -> str:
        values = metadata(context, TOKEN_KEY)
        if len(values) != 1 or not values[0].lower().startswith(_SCHEME) or len(values[0]) > _LONGEST_TOKEN:
            raise NotAuthenticated("the call carries no token: give the client --token-file")
        name = self._tokens.holder(values[0][len(_SCHEME) :])
        self._revocations.require_not_revoked(name)
        return name


def metadata(context: Context, wanted: str) -> list[str]:
    """The caller's values of a metadata key."""
    return [v for key, v in context.invocation_metadata() or () if key == wanted and isinstance(v, str)]


def holder_in(context: Context) -> Holder:
    """The holder of the caller's certificate; NotAuthenticated without one, or if it is not valid now."""
    shown = list(context.auth_context().get("x509_pem_cert", ()))
    if len(shown) != 1:
        raise NotAuthenticated("the connection has no client certificate")
    holder = _parsed(bytes(shown[0]))
    holder.require_current()
    return holder


@lru_cache(maxsize=10_000)
def _parsed(pem: bytes) -> Holder:
    return holder_of(x509.load_pem_x509_certificate(pem))
