"""The status code and the reason of every error. Clients in other languages match on both."""

from __future__ import annotations

import pytest

from puf_common import errors
from puf_common.errors import PufError, from_status

TABLE = [
    (errors.PufError, "INTERNAL", "PUF_ERROR"),
    (errors.UsageError, "INVALID_ARGUMENT", "USAGE_ERROR"),
    (errors.InvalidArgument, "INVALID_ARGUMENT", "USAGE_ERROR"),
    (errors.InvalidUpdate, "INVALID_ARGUMENT", "INVALID_UPDATE"),
    (errors.NotAuthenticated, "UNAUTHENTICATED", "NOT_AUTHENTICATED"),
    (errors.NotYours, "PERMISSION_DENIED", "NOT_YOURS"),
    (errors.Forgotten, "PERMISSION_DENIED", "FORGOTTEN"),
    (errors.NotFound, "NOT_FOUND", "NOT_FOUND"),
    (errors.UnknownSession, "NOT_FOUND", "UNKNOWN_SESSION"),
    (errors.Conflict, "ALREADY_EXISTS", "CONFLICT"),
    (errors.NotNow, "FAILED_PRECONDITION", "NOT_NOW"),
    (errors.StaleRound, "FAILED_PRECONDITION", "STALE_ROUND"),
    (errors.Mismatch, "FAILED_PRECONDITION", "MISMATCH"),
    (errors.WorkerAlive, "FAILED_PRECONDITION", "WORKER_ALIVE"),
    (errors.Superseded, "FAILED_PRECONDITION", "SUPERSEDED"),
    (errors.TooMuch, "RESOURCE_EXHAUSTED", "TOO_MUCH"),
    (errors.Unavailable, "UNAVAILABLE", "UNAVAILABLE"),
    (errors.TransferCorrupted, "DATA_LOSS", "CORRUPTED"),
    (errors.CutShort, "DATA_LOSS", "CUT_SHORT"),
    (errors.StorageCorrupted, "DATA_LOSS", "STORAGE_CORRUPTED"),
]


def test_the_table_names_every_error() -> None:
    classes = {getattr(errors, name) for name in errors.__all__} - {from_status}
    assert {kind for kind, _, _ in TABLE} == classes


@pytest.mark.parametrize(("kind", "status", "reason"), TABLE)
def test_status_and_reason_are_stable(kind: type[PufError], status: str, reason: str) -> None:
    assert (kind.status, kind.reason) == (status, reason)


@pytest.mark.parametrize(("kind", "status", "reason"), [row for row in TABLE if row[0] is not errors.UsageError])
def test_the_reason_selects_the_class(kind: type[PufError], status: str, reason: str) -> None:
    error = from_status(status, reason, "text", {"round": "3"})
    assert type(error) is kind
    assert (error.message, error.facts) == ("text", {"round": "3"})


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("INTERNAL", errors.PufError),
        ("INVALID_ARGUMENT", errors.InvalidArgument),
        ("PERMISSION_DENIED", errors.NotYours),
        ("NOT_FOUND", errors.NotFound),
        ("FAILED_PRECONDITION", errors.NotNow),
        ("DATA_LOSS", errors.TransferCorrupted),
        ("DEADLINE_EXCEEDED", errors.Unavailable),
        ("OUT_OF_RANGE", errors.PufError),
    ],
)
def test_the_status_selects_the_class_when_the_reason_is_unknown(status: str, kind: type[PufError]) -> None:
    assert type(from_status(status, "REASON_OF_A_NEWER_PEER", "text", {})) is kind
    assert type(from_status(status, "", "text", {})) is kind
