"""Operator commands that are typed too early, or asked to stay until something is done."""

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


def test_a_command_typed_while_the_server_starts_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = make_state(tmp_path / "state", tiny_config(plan={"min_clients": 1}))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: OperatorClient.of_state(state, start_seconds=60).pause())
        with running(state, Pki(tmp_path / "pki").server_tls()) as server:
            asked.result(60)
            assert server.engine.state.paused
            # Whoever waits for the end of a federation that is paused is told so, and not kept.
            assert main(["status", "--state", str(state), "--until-idle"]) == Exit.FAILURE
    assert "paused" in capsys.readouterr().out


def test_a_command_outlives_what_a_killed_server_left_behind(tmp_path: Path) -> None:
    state = make_state(tmp_path / "state", tiny_config(plan={"min_clients": 1}))
    pki = Pki(tmp_path / "pki")
    with running(state, pki.server_tls()):
        left = (state / "operator.json").read_bytes()
    (state / "operator.json").write_bytes(left)
    with OperatorClient.of_state(state, start_seconds=60) as control, running(state, pki.server_tls()) as server:
        control.pause()
        assert server.engine.state.paused


def test_where_there_is_no_federation_nobody_waits(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no server serves"):
        OperatorClient.of_state(tmp_path, start_seconds=3600)
