"""Exit codes that scripts and supervisors can rely on."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Exit"]


class Exit(IntEnum):
    OK = 0
    # Something failed; the message says what.
    FAILURE = 1
    # A wrong flag, a missing file, a bad configuration: nothing was started.
    USAGE = 2
    # The server could not be reached in the time allowed.
    UNREACHABLE = 3
    # The server refused: fingerprints differ, not authorised, request outside the policy.
    REFUSED = 4
    # This client was forgotten. Supervisors must not restart it.
    FORGOTTEN = 10
    # A newer process took over this identity. Supervisors must not restart it.
    SUPERSEDED = 11
    # Interrupted from the keyboard.
    INTERRUPTED = 130
