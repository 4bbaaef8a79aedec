"""Who is calling. Everything that authenticates lives here; the rest of the server only sees names.

Where TLS is on, the certificate or the token is the identity. What a caller claims in its metadata is not looked at.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

from cryptography import x509
from grpc import aio

from puf_common.errors import InvalidArgument, NotAuthenticated
from puf_common.names import check_name
from puf_common.network.certificates import Holder, holder_of
from puf_common.network.status import IDENTITY_KEY, TOKEN_KEY
from puf_server.admission.tokens import Revocations, Tokens

__all__ = ["Anybody", "Bearer", "Certificate", "Claimed", "Identify", "OperatorCertificate"]

Context = aio.ServicerContext[Any, Any]

_SCHEME = "bearer "
_LONGEST_TOKEN = 200


class Identify(Protocol):
    """Turns a call's context into the caller's name, or raises NotAuthenticated. Cheap: asked again while calls last."""

    def __call__(self, context: Context) -> str: ...


class Claimed:
    """Without TLS a caller is who it says it is: for loopback and tests only."""

    def __call__(self, context: Context) -> str:
        values = _metadata(context, IDENTITY_KEY)
        if len(values) != 1:
            raise NotAuthenticated(f"the call names no client: send the metadata key {IDENTITY_KEY} once")
        return check_name(values[0], InvalidArgument)


class Anybody:
    """The operator's listener without TLS: whoever reaches it steers the federation."""

    def __call__(self, context: Context) -> str:
        return "operator"


class Certificate:
    """mTLS: a caller is whom its certificate speaks for."""

    def __init__(self, revocations: Revocations) -> None:
        self._revocations = revocations

    def __call__(self, context: Context) -> str:
        holder = _holder(context)
        if holder.role != "client":
            raise NotAuthenticated(
                f"the certificate of {holder.name} is an {holder.role}'s and does not act as a client"
            )
        self._revocations.require(holder.name, holder)
        return holder.name


class OperatorCertificate:
    """The operator's listener: a certificate that says operator, of the clients' authority or of the server itself."""

    def __init__(self, revocations: Revocations) -> None:
        self._revocations = revocations

    def __call__(self, context: Context) -> str:
        holder = _holder(context)
        if holder.role != "operator":
            raise NotAuthenticated(
                f"{holder.name} is a client; operator commands need an operator's certificate (puf-server certs operator)"
            )
        # Names of operators are not names of clients: only the certificate itself can be revoked here.
        self._revocations.require("", holder)
        return holder.name


class Bearer:
    """TLS with a token per client: a caller is whose token it sends."""

    def __init__(self, tokens: Tokens, revocations: Revocations) -> None:
        self._tokens = tokens
        self._revocations = revocations

    def __call__(self, context: Context) -> str:
        values = _metadata(context, TOKEN_KEY)
        if len(values) != 1 or not values[0].lower().startswith(_SCHEME) or len(values[0]) > _LONGEST_TOKEN:
            raise NotAuthenticated("the call carries no token: give the client --token-file")
        name = self._tokens.holder(values[0][len(_SCHEME) :])
        self._revocations.require(name)
        return name


def _metadata(context: Context, wanted: str) -> list[str]:
    return [v for key, v in context.invocation_metadata() or () if key == wanted and isinstance(v, str)]


def _holder(context: Context) -> Holder:
    shown = list(context.auth_context().get("x509_pem_cert", ()))
    if len(shown) != 1:
        raise NotAuthenticated("the connection shows no certificate")
    holder = _parsed(bytes(shown[0]))
    holder.require_current()
    return holder


@lru_cache(maxsize=10_000)
def _parsed(pem: bytes) -> Holder:
    return holder_of(x509.load_pem_x509_certificate(pem))
