"""`puf-server tokens`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.running import make_state

from puf_common.config.exit_codes import Exit
from puf_common.errors import NotAuthenticated
from puf_server.admission.tokens import Tokens
from puf_server.cli.main import main


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PUF_STATE", "state")
    return make_state(tmp_path / "state")


def test_a_token_is_shown_once_replaced_and_revoked(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "add", "anna"]) == Exit.OK
    token = capsys.readouterr().out.strip()
    serving = Tokens(state)
    assert serving.holder(token) == "anna"
    assert main(["tokens", "rotate", "anna", "--out", "anna.token"]) == Exit.OK
    assert Path("anna.token").stat().st_mode & 0o777 == 0o600
    renewed = Path("anna.token").read_text().strip()
    serving.refresh()
    with pytest.raises(NotAuthenticated, match="unknown"):
        serving.holder(token)
    assert serving.holder(renewed) == "anna"
    capsys.readouterr()
    assert main(["tokens", "list"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "anna  made" in shown
    assert renewed not in shown
    assert main(["tokens", "revoke", "anna"]) == Exit.OK
    capsys.readouterr()
    assert main(["tokens", "list"]) == Exit.OK
    assert capsys.readouterr().out == "no client has a token\n"


@pytest.mark.parametrize("days", ["0", "-1", "nan"])
def test_a_token_that_would_be_expired_is_refused(state: Path, capsys: pytest.CaptureFixture[str], days: str) -> None:
    assert main(["tokens", "add", "anna", "--days", days]) == Exit.USAGE
    assert "more than 0" in capsys.readouterr().err
    assert not Tokens(state).all()


def test_errors_name_the_command_that_helps(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "rotate", "anna"]) == Exit.USAGE
    assert "puf-server tokens add anna" in capsys.readouterr().err
    assert main(["tokens", "add", "anna"]) == Exit.OK
    capsys.readouterr()
    assert main(["tokens", "add", "anna"]) == Exit.USAGE
    assert "puf-server tokens rotate anna" in capsys.readouterr().err
    Path("there").write_text("")
    assert main(["tokens", "rotate", "anna", "--out", "there"]) == Exit.USAGE
    assert "not overwritten" in capsys.readouterr().err
