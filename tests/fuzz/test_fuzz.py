"""Thousands of cases: no traceback, no growth, the model unchanged, the other clients unharmed."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.rig import fuzz
from tests.pki import Pki

CASES = 2000


def test_hostile_messages_streams_and_bytes(tmp_path: Path) -> None:
    answers = fuzz(tmp_path / "state", 1, CASES)
    assert answers.total() >= 2 * CASES
    # All over the code, not only at the door.
    assert {"INVALID_ARGUMENT", "UNAUTHENTICATED", "NOT_FOUND", "FAILED_PRECONDITION"} <= answers.keys()


def test_the_same_over_mutual_tls(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    answers = fuzz(tmp_path / "state", 2, CASES // 4, tls=pki.server_tls(), as_=pki.client)
    assert answers.total() >= 2 * (CASES // 4)
