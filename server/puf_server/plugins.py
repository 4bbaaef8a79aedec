"""Methods of the user's code: `--forgetting-method package.module:Class`. Clients see this name and never import it."""

from __future__ import annotations

from puf_common.config import plugins
from puf_common.errors import UsageError
from puf_server.core import methods
from puf_server.core.methods.base import Method


def allow() -> None:
    """Allows a federation's configuration to name a class of the user's code."""
    methods.use_loader(_load)


def _load(spec: str) -> type[Method]:
    found = plugins.load(spec)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(f"{spec} must be a class that derives from puf_server.core.methods.base.Method")
    return found
