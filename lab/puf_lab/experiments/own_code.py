"""Code of the user's own enters what a result is named by: who changes it gets new runs, not old figures."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from puf_common.config import plugins

__all__ = ["digest"]


def digest(spec: str) -> str:
    """Of the file behind package.module:name; empty for what is built in. What that file imports does not count."""
    if ":" not in spec:
        return ""
    module = sys.modules[plugins.load(spec).__module__]
    path = getattr(module, "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:20] if path else ""
