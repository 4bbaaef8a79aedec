"""Exit codes are stable, and every error has one."""

from __future__ import annotations

import pytest

from puf_common import errors
from puf_common.config.exit_codes import Exit, exit_code


def test_codes_are_stable() -> None:
    """Scripts and service managers depend on these numbers."""
    assert {code.name: code.value for code in Exit} == {
        "OK": 0,
        "FAILURE": 1,
        "USAGE": 2,
        "UNREACHABLE": 3,
        "REFUSED": 4,
        "FORGOTTEN": 10,
        "SUPERSEDED": 11,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.PufError, Exit.FAILURE),
        (errors.UsageError, Exit.USAGE),
        (errors.InvalidArgument, Exit.USAGE),
        (errors.InvalidUpdate, Exit.FAILURE),
        (errors.NotAuthenticated, Exit.REFUSED),
        (errors.NotYours, Exit.REFUSED),
        (errors.Forgotten, Exit.FORGOTTEN),
        (errors.NotFound, Exit.FAILURE),
        (errors.UnknownSession, Exit.FAILURE),
        (errors.Conflict, Exit.FAILURE),
        (errors.NotNow, Exit.REFUSED),
        (errors.StaleRound, Exit.REFUSED),
        (errors.Mismatch, Exit.REFUSED),
        (errors.WorkerAlive, Exit.REFUSED),
        (errors.Superseded, Exit.SUPERSEDED),
        (errors.TooMuch, Exit.FAILURE),
        (errors.Unavailable, Exit.UNREACHABLE),
        (errors.TransferCorrupted, Exit.FAILURE),
        (errors.CutShort, Exit.FAILURE),
        (errors.StorageCorrupted, Exit.FAILURE),
    ],
)
def test_every_error_has_its_exit_code(kind: type[errors.PufError], code: Exit) -> None:
    assert exit_code(kind("message")) is code
