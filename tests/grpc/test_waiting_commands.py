"""Operator commands that start before the server, or that wait for a result."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.pki import Pki
from tests.running import make_state, running, tiny_config

from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_server.cli.main import main
from puf_server.cli.operator_client import OperatorClient


def test_a_command_waits_for_a_server_that_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = make_state(tmp_path / "state", tiny_config(plan={"min_clients": 1}))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: OperatorClient.of_state(state, start_seconds=60).pause())
        with running(state, Pki(tmp_path / "pki").server_tls()) as server:
            asked.result(60)
            assert server.engine.state.paused
            # A command that waits for the end of a paused federation reports the pause and ends.
            assert main(["status", "--state", str(state), "--until-idle"]) == Exit.FAILURE
    assert "paused" in capsys.readouterr().out


def test_a_command_that_waits_for_the_end_of_the_work_also_waits_for_a_slow_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_state(tmp_path / "state", tiny_config(plan={"min_clients": 1}))
    monkeypatch.setattr("puf_server.cli.connection._START_SECONDS", 0.0)
    assert main(["status", "--state", str(state)]) == Exit.USAGE
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(main, ["status", "--state", str(state), "--until-idle"])
        with running(state), OperatorClient.of_state(state, start_seconds=60) as control:
            control.pause()
            assert asked.result(60) == Exit.FAILURE


def test_a_command_ignores_the_access_file_of_a_killed_server(tmp_path: Path) -> None:
    state = make_state(tmp_path / "state", tiny_config(plan={"min_clients": 1}))
    pki = Pki(tmp_path / "pki")
    with running(state, pki.server_tls()):
        left = (state / "operator.json").read_bytes()
    (state / "operator.json").write_bytes(left)
    with OperatorClient.of_state(state, start_seconds=60) as control, running(state, pki.server_tls()) as server:
        control.pause()
        assert server.engine.state.paused


def test_without_a_federation_a_command_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no server serves"):
        OperatorClient.of_state(tmp_path, start_seconds=3600)
