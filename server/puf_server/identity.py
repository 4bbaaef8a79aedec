"""Who is calling. Everything that authenticates lives here; the rest of the server only sees names."""

from __future__ import annotations

from typing import Any, Protocol

from grpc import aio

from puf_common.errors import NotAuthenticated
from puf_common.rpc import IDENTITY_KEY
from puf_server.translate import client_name

__all__ = ["Claimed", "Identify"]

Context = aio.ServicerContext[Any, Any]


class Identify(Protocol):
    """Turns a call's context into the caller's name, or raises NotAuthenticated."""

    def __call__(self, context: Context) -> str: ...


class Claimed:
    """Without TLS a caller is who it says it is: for loopback and tests only."""

    def __call__(self, context: Context) -> str:
        for key, value in context.invocation_metadata() or ():
            if key == IDENTITY_KEY and isinstance(value, str):
                return client_name(value)
        raise NotAuthenticated(f"the call names no client: send the metadata key {IDENTITY_KEY}")
