"""Exit codes for scripts and supervisors, and the exit code of every error."""

from __future__ import annotations

from enum import IntEnum

from puf_common.errors import (
    Forgotten,
    InvalidArgument,
    NotAuthenticated,
    NotNow,
    NotYours,
    PufError,
    Superseded,
    Unavailable,
    UsageError,
)


class Exit(IntEnum):
    OK = 0
    # Something failed; the message says what.
    FAILURE = 1
    # A wrong flag, a missing file, a bad configuration or an invalid request: nothing was started.
    USAGE = 2
    # The server could not be reached in the time allowed.
    UNREACHABLE = 3
    # The server refused: fingerprints differ, not authorised, request outside the policy.
    REFUSED = 4
    # This client was forgotten. Supervisors must not restart it.
    FORGOTTEN = 10
    # A newer process took over this client. Supervisors must not restart it.
    SUPERSEDED = 11
    # Interrupted from the keyboard.
    INTERRUPTED = 130


_CODES: tuple[tuple[type[PufError], Exit], ...] = (
    (UsageError, Exit.USAGE),
    (InvalidArgument, Exit.USAGE),
    (Unavailable, Exit.UNREACHABLE),
    (Forgotten, Exit.FORGOTTEN),
    (Superseded, Exit.SUPERSEDED),
    (NotYours, Exit.REFUSED),
    (NotNow, Exit.REFUSED),
    (NotAuthenticated, Exit.REFUSED),
)


def exit_code(error: PufError) -> Exit:
    """The exit code of a command that ends with this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.FAILURE)
