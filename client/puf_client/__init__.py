"""The client of a PUF federation: `puf-client`, and the names that the user's code imports.

    data = puf_client.ClientData(train, holdout=val, ids=ids)
    with puf_client.connect("fed:7300", name="clinic-7", data=data, model=model) as session:
        for job in session: ...

The names in `__all__` are the stable surface: within a major version they keep their meaning, arguments get defaults, and
a name is removed only after a version that warns. Every other name of this package can change in any version. Names are
resolved at first use, so that importing the package is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from puf_client.api.connect import ConnectOptions, connect
    from puf_client.api.job import Job
    from puf_client.api.session import Session
    from puf_client.data.api import ClientData, DataContext
    from puf_client.tasks import Task
    from puf_common.errors import PufError

    __version__: str

__all__ = [
    "ClientData",
    "ConnectOptions",
    "DataContext",
    "Job",
    "PufError",
    "Session",
    "Task",
    "__version__",
    "connect",
]

_MODULES = {
    "ClientData": "puf_client.data.api",
    "ConnectOptions": "puf_client.api.connect",
    "DataContext": "puf_client.data.api",
    "Job": "puf_client.api.job",
    "PufError": "puf_common.errors",
    "Session": "puf_client.api.session",
    "Task": "puf_client.tasks",
    "connect": "puf_client.api.connect",
}
# Names of version 0.1, with what to change.
_REMOVED = {
    "Assignment": "a session yields `puf_client.Job`: use job.optimizer(), job.batches() and job.submit()",
    "EvaluationRequest": "the session evaluates by itself: remove that branch of the loop, and pass model= to connect",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("puf_common.version").VERSION
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in _REMOVED:
        raise AttributeError(f"puf_client.{name} was removed: {_REMOVED[name]}")
    raise AttributeError(f"module 'puf_client' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
