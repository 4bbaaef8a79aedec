"""Confirmation, and log lines above a progress bar."""

from __future__ import annotations

import io
import sys

import pytest

from puf_client.terminal import Display, confirm, stderr
from puf_common.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_confirmation_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("anna\n"))
    with pytest.raises(UsageError, match="add --yes"):
        confirm("Sure?", "anna")


def test_only_the_clients_name_confirms(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("anna\n"))
    confirm("Sure?", "anna")
    assert "Sure?" in capsys.readouterr().out
    for answer in ("bert\n", "\n", ""):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        with pytest.raises(UsageError, match="nothing was done"):
            confirm("Sure?", "anna")


def test_the_log_stream_follows_a_replaced_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stderr()
    for replacement in (io.StringIO(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", replacement)
        stream.write("line")
        assert replacement.getvalue() == "line"


def test_without_a_terminal_a_display_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as display:
        display.say("training")
        display.count(1, 2)
    assert capsys.readouterr() == ("", "")
