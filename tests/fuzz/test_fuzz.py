"""Thousands of attacks: no traceback, no growth, an unchanged model, no harm to other clients."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.rig import fuzz
from tests.pki import Pki

CASES = 2000


def test_hostile_messages_streams_and_bytes(tmp_path: Path) -> None:
    answers = fuzz(tmp_path / "state", 1, CASES)
    assert answers.total() >= 2 * CASES
    # The attacks reach all of the code, not only the admission.
    assert {"INVALID_ARGUMENT", "UNAUTHENTICATED", "NOT_FOUND", "FAILED_PRECONDITION"} <= answers.keys()


def test_the_same_over_mutual_tls(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    answers = fuzz(tmp_path / "state", 2, CASES // 4, tls=pki.server_tls(), as_=pki.client)
    assert answers.total() >= 2 * (CASES // 4)
