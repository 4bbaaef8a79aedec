"""Digest of the user's code. It is part of a result's name, so changed code gets new runs."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from puf_common.config import plugins


def digest(spec: str) -> str:
    """Digest of the file behind package.module:name, empty for built-in names. Imports of that file do not count."""
    if ":" not in spec:
        return ""
    module = sys.modules[plugins.load(spec).__module__]
    path = getattr(module, "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:20] if path else ""
