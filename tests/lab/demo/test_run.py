"""The receipt of the demo is verified; the same receipt with one changed byte is refused."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.common.receipts.test_signed_receipt import content

from puf_client.state.directory import StateDirectory
from puf_common.errors import PufError
from puf_common.receipts import signed_receipt
from puf_common.receipts.signing_key import SigningKey
from puf_lab.demo.report import verify_receipt

KEY = SigningKey.generate()


def finished(out: Path, pinned: SigningKey) -> Console:
    """The files of a finished demo: a receipt, and a target that has pinned the server's key."""
    out.mkdir()
    (out / "receipt-t-1.json").write_bytes(signed_receipt.issue(content(), KEY))
    StateDirectory.of("f-1", "clinic-7", out / "clients").pin_server_key(pinned.public)
    return Console(file=StringIO(), width=200)


@pytest.mark.e2e
def test_the_receipt_is_valid_and_the_changed_one_is_not(tmp_path: Path) -> None:
    console = finished(tmp_path / "demo", KEY)
    verify_receipt(tmp_path / "demo", console)
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue().splitlines()
    assert [line.split(":")[0] for line in printed if "VALID" in line] == ["VALID", "NOT VALID"]
    whole = (tmp_path / "demo" / "receipt-t-1.json").read_bytes()
    changed = (tmp_path / "demo" / "changed-receipt-t-1.json").read_bytes()
    assert sum(a != b for a, b in zip(whole, changed, strict=True)) == 1


@pytest.mark.e2e
def test_a_demo_with_an_invalid_receipt_fails(tmp_path: Path) -> None:
    console = finished(tmp_path / "demo", SigningKey.generate())
    with pytest.raises(PufError, match=r"verifying receipt-t-1.json ended with code 1, expected was 0"):
        verify_receipt(tmp_path / "demo", console)
