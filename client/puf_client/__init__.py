"""The client of a PUF federation: the agent behind `puf-client`, and what code of your own builds on.

    from puf_client import ClientData, DataContext   # for a data function
    for work in puf_client.connect(...): ...         # for a training loop of your own

Names are resolved when they are used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from puf_client.data.api import ClientData, DataContext
    from puf_client.session.session import connect

__all__ = ["ClientData", "DataContext", "connect"]

_HOMES = {
    "ClientData": "puf_client.data.api",
    "DataContext": "puf_client.data.api",
    "connect": "puf_client.session.session",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'puf_client' has no attribute {name!r}")
