"""`puf-client verify`: one line and an exit code, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.common.receipts.test_signed_receipt import content

from puf_client.cli.main import main
from puf_client.state.directory import StateDirectory
from puf_common.config.exit_codes import Exit
from puf_common.receipts import signed_receipt
from puf_common.receipts.signing_key import SigningKey, fingerprint

KEY, OTHER = SigningKey.generate(), SigningKey.generate()


@pytest.fixture
def receipt(tmp_path: Path) -> Path:
    path = tmp_path / "receipt-t-1.json"
    path.write_bytes(signed_receipt.issue(content(), KEY))
    return path


@pytest.fixture
def pinned(tmp_path: Path) -> list[str]:
    StateDirectory.of("f-1", "clinic-7", tmp_path / "state").pin_server_key(KEY.public)
    return ["--state", str(tmp_path / "state")]


def test_a_receipt_of_the_pinned_key_is_valid(
    receipt: Path, pinned: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(receipt), *pinned]) == Exit.OK
    output = capsys.readouterr().out
    assert output.startswith("VALID: t-1 of clinic-7")
    assert "not a proof of erasure" in output
    assert len(output.splitlines()) == 1


def test_any_changed_byte_is_found(receipt: Path, pinned: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    whole = receipt.read_bytes()
    for place in range(0, len(whole), 211):
        receipt.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert main(["verify", str(receipt), *pinned]) == Exit.FAILURE
        output = capsys.readouterr().out
        assert output.startswith("NOT VALID: ")
        assert len(output.splitlines()) == 1


def test_a_receipt_of_another_key_is_not_valid(
    tmp_path: Path, pinned: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    forged = tmp_path / "forged.json"
    forged.write_bytes(signed_receipt.issue(content(), OTHER))
    assert main(["verify", str(forged), *pinned]) == Exit.FAILURE
    output = capsys.readouterr().out
    assert fingerprint(KEY.public) in output
    assert fingerprint(OTHER.public) in output


def test_the_key_can_be_given_as_text_or_file(
    receipt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "key.txt"
    file.write_text(KEY.public.hex() + "\n")
    for key in (KEY.public.hex(), fingerprint(KEY.public), fingerprint(KEY.public).upper(), str(file)):
        assert main(["verify", str(receipt), "--key", key]) == Exit.OK
    assert main(["verify", str(receipt), "--key", fingerprint(OTHER.public)]) == Exit.FAILURE
    assert main(["verify", str(receipt), "--key", "nonsense"]) == Exit.USAGE
    assert "fingerprint" in capsys.readouterr().err


def test_without_a_key_a_receipt_proves_nothing(
    receipt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(receipt), "--state", str(tmp_path / "empty")]) == Exit.FAILURE
    output = capsys.readouterr().out
    assert "--key" in output
    assert fingerprint(KEY.public) in output


def test_a_missing_file_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "none.json")]) == Exit.USAGE
    assert "none.json" in capsys.readouterr().err
