"""What a client may be called. The rule is the server's; it is checked here before anything is loaded."""

from __future__ import annotations

import re

from puf_common.errors import UsageError

__all__ = ["check_name"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """The name, if it can be one: it travels in headers, names directories and is typed by people."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a client's name: up to 64 letters, digits and . _ - are allowed, "
            "starting with a letter or digit"
        )
    return name
