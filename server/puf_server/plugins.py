"""Methods of the user's own code: `--forgetting-method package.module:Class`. The name is local and never travels."""

from __future__ import annotations

from puf_common.config import plugins
from puf_common.errors import UsageError
from puf_server.core import methods
from puf_server.core.methods.base import Method

__all__ = ["allow"]


def allow() -> None:
    """From here on a federation's description may name a class of local code."""
    methods.use_loader(_load)


def _load(spec: str) -> type[Method]:
    found = plugins.load(spec)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(f"{spec} must be a class that derives from puf_server.core.methods.base.Method")
    return found
