"""Every error that PUF raises, in one tree.

PufError                      a message for people, a stable reason for programs, facts for both
├── UsageError                a wrong flag, a missing file, a bad configuration           INVALID_ARGUMENT
├── InvalidArgument           a request whose content is not allowed                      INVALID_ARGUMENT
├── InvalidUpdate             tensors that do not fit: names the tensor                   INVALID_ARGUMENT
├── NotAuthenticated          the caller gave no identity that the server knows           UNAUTHENTICATED
├── NotYours                  the caller is known and may not do this                     PERMISSION_DENIED
│   └── Forgotten             the client was forgotten                                    PERMISSION_DENIED
├── NotFound                  no such ticket, model, client                               NOT_FOUND
│   └── UnknownSession        the server does not know the session: join again            NOT_FOUND
├── Conflict                  the same key with other content                             ALREADY_EXISTS
├── NotNow                    the state does not allow it                                 FAILED_PRECONDITION
│   ├── StaleRound            the round is over; carries the current one                  FAILED_PRECONDITION
│   ├── Mismatch              fingerprints differ; names both                             FAILED_PRECONDITION
│   ├── WorkerAlive           another worker of this client is alive                      FAILED_PRECONDITION
│   └── Superseded            a newer worker took over the client                         FAILED_PRECONDITION
├── TooMuch                   over a limit; says which                                    RESOURCE_EXHAUSTED
├── Unavailable               restarting, disk full, not reachable: try again             UNAVAILABLE
├── TransferCorrupted         a message, model or receipt arrived damaged: send it again  DATA_LOSS
│   └── CutShort              an update's stream ended before the update did              DATA_LOSS
└── StorageCorrupted          bytes on disk are damaged or missing: restore a backup      DATA_LOSS

The last column is the gRPC status code. `reason` is the name that programs match on; it travels beside the status.

Two reasons are older than their classes. `CORRUPTED` once stood for both kinds of damage, `USAGE_ERROR` for every
invalid argument. Peers of version 0.1.0 match on them, so TransferCorrupted and InvalidArgument keep them. Such a peer
does not know `STORAGE_CORRUPTED` and falls back to the status code. A UsageError concerns this process only; a server
does not send it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

__all__ = [
    "Conflict",
    "CutShort",
    "Forgotten",
    "InvalidArgument",
    "InvalidUpdate",
    "Mismatch",
    "NotAuthenticated",
    "NotFound",
    "NotNow",
    "NotYours",
    "PufError",
    "StaleRound",
    "StorageCorrupted",
    "Superseded",
    "TooMuch",
    "TransferCorrupted",
    "Unavailable",
    "UnknownSession",
    "UsageError",
    "WorkerAlive",
    "from_status",
]


class PufError(Exception):
    """A failure that says what happened and what to do. `facts` travel as error details."""

    status: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "PUF_ERROR"

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts: Mapping[str, str] = {key: str(value) for key, value in facts.items()}


class UsageError(PufError):
    status = "INVALID_ARGUMENT"
    reason = "USAGE_ERROR"


class InvalidArgument(PufError):
    status = "INVALID_ARGUMENT"
    reason = "USAGE_ERROR"


class InvalidUpdate(PufError):
    status = "INVALID_ARGUMENT"
    reason = "INVALID_UPDATE"


class NotAuthenticated(PufError):
    status = "UNAUTHENTICATED"
    reason = "NOT_AUTHENTICATED"


class NotYours(PufError):
    status = "PERMISSION_DENIED"
    reason = "NOT_YOURS"


class Forgotten(NotYours):
    reason = "FORGOTTEN"


class NotFound(PufError):
    status = "NOT_FOUND"
    reason = "NOT_FOUND"


class UnknownSession(NotFound):
    reason = "UNKNOWN_SESSION"


class Conflict(PufError):
    status = "ALREADY_EXISTS"
    reason = "CONFLICT"


class NotNow(PufError):
    status = "FAILED_PRECONDITION"
    reason = "NOT_NOW"


class StaleRound(NotNow):
    reason = "STALE_ROUND"


class Mismatch(NotNow):
    reason = "MISMATCH"


class WorkerAlive(NotNow):
    reason = "WORKER_ALIVE"


class Superseded(NotNow):
    reason = "SUPERSEDED"


class TooMuch(PufError):
    status = "RESOURCE_EXHAUSTED"
    reason = "TOO_MUCH"


class Unavailable(PufError):
    status = "UNAVAILABLE"
    reason = "UNAVAILABLE"


class TransferCorrupted(PufError):
    status = "DATA_LOSS"
    reason = "CORRUPTED"


class CutShort(TransferCorrupted):
    """The connection broke or the sender stopped: the receiver cannot tell which, and keeps the bytes that arrived."""

    reason = "CUT_SHORT"


class StorageCorrupted(PufError):
    status = "DATA_LOSS"
    reason = "STORAGE_CORRUPTED"


def _received(root: type[PufError]) -> list[type[PufError]]:
    """The classes that a status can stand for, most special first. A UsageError is local, as are its kinds."""
    below = (leaf for child in reversed(root.__subclasses__()) for leaf in _received(child))
    return [*(kind for kind in below if not issubclass(kind, UsageError)), root]


def from_status(status: str, reason: str, message: str, facts: Mapping[str, str]) -> PufError:
    """The error that a gRPC status stands for: by its reason if that is known, else by its status code."""
    # Of classes with the same status or reason, the most general one counts: it comes last.
    kinds = _received(PufError)
    by_reason = {kind.reason: kind for kind in kinds}
    if reason in by_reason:
        return by_reason[reason](message, **facts)
    if status == "DEADLINE_EXCEEDED":
        return Unavailable(message, **facts)
    by_status = {kind.status: kind for kind in kinds}
    return by_status.get(status, PufError)(message, **facts)
