"""The README's first command: the demo runs to its end and says what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.federation import command

from puf_common.config.exit_codes import Exit
from puf_common.receipts.evidence import Verdict

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_the_demo_ends_with_a_verdict_and_a_valid_receipt(tmp_path: Path) -> None:
    done = command(["puf-lab", "demo", "--out", str(tmp_path / "demo")], cwd=tmp_path, seconds=500)
    assert done.code == Exit.OK, done.out + done.err
    result = json.loads((tmp_path / "demo" / "result.json").read_text())
    words = {verdict.value for verdict in Verdict}
    assert {result["verdict"], result["receipt_verdict"]} <= words
    assert result["verdict"] != Verdict.STILL_KNOWN.value
    assert result["receipt_verdict"] != Verdict.STILL_KNOWN.value
    assert f"Verdict: {result['verdict']}." in done.out
    assert "dashboard, while this federation runs: http://127.0.0.1:" in done.out
    assert "NOT VALID" in done.out
    assert list((tmp_path / "demo").glob("*.png"))
