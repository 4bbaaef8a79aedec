"""The client of a PUF federation: `puf-client`, and the names that the user's code imports.

    from puf_client import ClientData, DataContext   # for a data function
    for work in puf_client.connect(...): ...         # for a training loop

Names are resolved at first use, so that importing the package is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from puf_client.data.api import ClientData, DataContext
    from puf_client.session.assignment import Assignment, EvaluationRequest
    from puf_client.session.connect import connect

    __version__: str

__all__ = ["Assignment", "ClientData", "DataContext", "EvaluationRequest", "__version__", "connect"]

_MODULES = {
    "Assignment": "puf_client.session.assignment",
    "ClientData": "puf_client.data.api",
    "DataContext": "puf_client.data.api",
    "EvaluationRequest": "puf_client.session.assignment",
    "connect": "puf_client.session.connect",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("puf_common.version").VERSION
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'puf_client' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
