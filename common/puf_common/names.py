"""The names that clients and operators may have. A name becomes part of file names, headers, certificates and logs."""

from __future__ import annotations

import re

from puf_common.errors import PufError, UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str, error: type[PufError] = UsageError) -> str:
    """The name if the rule allows it; raises `error` otherwise."""
    if not NAME.fullmatch(name):
        raise error(
            f"{name[:100]!r} cannot be a name: 1 to 64 letters, digits and . _ - are allowed, starting with a letter or digit"
        )
    return name
