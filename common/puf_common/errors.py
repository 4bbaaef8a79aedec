"""Everything that can go wrong, in one tree.

PufError                      a message for people, a stable reason for programs, facts for both
├── UsageError                a wrong flag, a missing file, a bad configuration           INVALID_ARGUMENT
├── InvalidUpdate             tensors that do not fit: names the tensor                   INVALID_ARGUMENT
├── NotAuthenticated          nobody knows the caller                                     UNAUTHENTICATED
├── NotYours                  the caller is known and may not do this                     PERMISSION_DENIED
│   └── Forgotten             the identity was forgotten                                  PERMISSION_DENIED
├── NotFound                  no such ticket, model, client                               NOT_FOUND
│   └── UnknownSession        the server does not know the session: join again            NOT_FOUND
├── Conflict                  the same key with other content                             ALREADY_EXISTS
├── NotNow                    the state does not allow it                                 FAILED_PRECONDITION
│   ├── StaleRound            the round is over; carries the current one                  FAILED_PRECONDITION
│   ├── Mismatch              fingerprints differ; names both                             FAILED_PRECONDITION
│   ├── WorkerAlive           a worker lives under this identity already                  FAILED_PRECONDITION
│   └── Superseded            a newer worker took over the identity                       FAILED_PRECONDITION
├── TooMuch                   over a limit; says which                                    RESOURCE_EXHAUSTED
├── Unavailable               restarting, disk full, not reachable: try again             UNAVAILABLE
└── Corrupted                 bytes on disk or on the wire do not match their digest      DATA_LOSS
    └── CutShort              an update's stream ended before the update did              DATA_LOSS

The last column is the whole translation to gRPC status codes; `status_code` and `from_status` are the only places that use it.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "Conflict",
    "Corrupted",
    "CutShort",
    "Forgotten",
    "InvalidUpdate",
    "Mismatch",
    "NotAuthenticated",
    "NotFound",
    "NotNow",
    "NotYours",
    "PufError",
    "StaleRound",
    "Superseded",
    "TooMuch",
    "Unavailable",
    "UnknownSession",
    "UsageError",
    "WorkerAlive",
    "from_status",
    "status_code",
]


class PufError(Exception):
    """A failure that says what happened and what to do. `facts` travel as error details."""

    status = "INTERNAL"

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts: Mapping[str, str] = {key: str(value) for key, value in facts.items()}

    @classmethod
    def reason(cls) -> str:
        """The stable name that programs match on: STALE_ROUND for StaleRound."""
        return "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(cls.__name__)).upper()


class UsageError(PufError):
    status = "INVALID_ARGUMENT"


class InvalidUpdate(PufError):
    status = "INVALID_ARGUMENT"


class NotAuthenticated(PufError):
    status = "UNAUTHENTICATED"


class NotYours(PufError):
    status = "PERMISSION_DENIED"


class Forgotten(NotYours):
    pass


class NotFound(PufError):
    status = "NOT_FOUND"


class UnknownSession(NotFound):
    pass


class Conflict(PufError):
    status = "ALREADY_EXISTS"


class NotNow(PufError):
    status = "FAILED_PRECONDITION"


class StaleRound(NotNow):
    pass


class Mismatch(NotNow):
    pass


class WorkerAlive(NotNow):
    pass


class Superseded(NotNow):
    pass


class TooMuch(PufError):
    status = "RESOURCE_EXHAUSTED"


class Unavailable(PufError):
    status = "UNAVAILABLE"


class Corrupted(PufError):
    status = "DATA_LOSS"


class CutShort(Corrupted):
    """Its line broke or its sender stopped: the receiver cannot tell, and keeps what has come."""


def _tree(root: type[PufError]) -> list[type[PufError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


def status_code(error: PufError) -> str:
    """Name of the gRPC status code that stands for this error."""
    return error.status


def from_status(status: str, reason: str, message: str, facts: Mapping[str, str]) -> PufError:
    """The error behind a status: by its reason where the sender gave one, else by its code."""
    by_reason = {cls.reason(): cls for cls in _tree(PufError)}
    if reason in by_reason:
        return by_reason[reason](message, **facts)
    if status == "DEADLINE_EXCEEDED":
        return Unavailable(message, **facts)
    by_status = {cls.status: cls for cls in reversed(_tree(PufError))}
    return by_status.get(status, PufError)(message, **facts)
