"""The command line of `puf-server`: help, versions, and one clear line for a wrong argument."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.running import make_state, running

from puf_common.config.exit_codes import Exit
from puf_common.version import VERSION
from puf_server.cli.main import main
from puf_server.runtime.server import Server


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PUF_STATE", "PUF_OPERATOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(make_state(tmp_path / "state")) as server:
        yield server


Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must fail as a usage error; returns its one line."""

    def run(*words: str) -> str:
        assert main(list(words)) == Exit.USAGE
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    return run


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == Exit.OK
    assert capsys.readouterr().out == f"puf-server {VERSION}\n"


def test_without_torch_init_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; from puf_server.cli.main import main; "
        f"sys.exit(main(['init', '--state', {str(tmp_path / 'state')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == Exit.USAGE, done.stderr
    assert "install puf-fl[train]" in done.stderr
    assert "internal error" not in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("command", ["init", "serve"])
def test_help_shows_common_options_and_help_all_shows_every_option(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == Exit.OK
    short = capsys.readouterr().out
    assert main([command, "--help-all"]) == Exit.OK
    full = capsys.readouterr().out
    assert short.count("\n") < 80 < full.count("\n")
    for flag in ("--state", "--config", "--help-all"):
        assert flag in short
    assert "--limits-connections" not in short
    assert "limits" not in short
    assert "--limits-connections" in full


def test_hidden_options_still_work(tmp_path: Path, refused: Refused) -> None:
    assert "--limits-connections must be" in refused(
        "init", "--state", str(tmp_path / "state"), "--limits-connections", "-1"
    )


@pytest.mark.parametrize("words", [("extend", "2"), ("extend", "--rounds", "2")])
def test_rounds_are_added_by_position_or_flag(server: Server, words: tuple[str, ...]) -> None:
    assert main([*words, "--operator", f"127.0.0.1:{server.operator_port}"]) == Exit.OK
    assert server.engine.state.planned == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rounds", "-3"), "'-3' is not a number of rounds from 1 to"),
        (("--rounds", "0"), "'0' is not a number of rounds"),
        (("--rounds", "99999999"), "is not a number of rounds"),
        (("two",), "'two' is not a number of rounds"),
        (("2", "--rounds", "2"), "say once how many"),
        ((), "say once how many"),
    ],
)
def test_a_wrong_number_of_rounds_is_refused(
    server: Server, refused: Refused, words: tuple[str, ...], says: str
) -> None:
    assert says in refused("extend", *words, "--operator", f"127.0.0.1:{server.operator_port}")
    assert server.engine.state.planned == 2


def test_the_old_word_for_approve_still_works(server: Server, refused: Refused) -> None:
    where = ("--operator", f"127.0.0.1:{server.operator_port}")
    for word in ("approve", "allow"):
        for command in ("clients", "tickets"):
            assert f"puf-server {command} approve" in refused(command, word, *where)
    assert main(["clients", "--help"]) == Exit.OK


def test_the_help_of_clients_does_not_show_the_old_word(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("clients", "tickets"):
        assert main([command, "--help"]) == Exit.OK
        shown = capsys.readouterr().out
        assert "approve" in shown
        assert "allow" not in shown


def test_a_command_without_a_server_ends_soon_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = make_state(tmp_path / "state")
    with running(state):
        left = (state / "operator.json").read_bytes()
    # A killed server leaves its file behind.
    (state / "operator.json").write_bytes(left)
    assert main(["status", "--state", str(state)]) == Exit.UNREACHABLE
    assert "no server answers" in capsys.readouterr().err
