"""The command line of `puf-client` without a server: help, errors, configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from puf_client import options
from puf_client.cli.main import main
from puf_common.config.exit_codes import Exit
from puf_common.tensors.model_file import read_manifest
from puf_common.version import VERSION

COMMANDS = ["run", "unlearn", "status", "withdraw", "receipt", "verify", "present", "init", "check", "model", "fleet"]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PUF_NAME", "PUF_SERVER", "PUF_DATA", "PUF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))


def imported_by(*argv: str) -> set[str]:
    code = (
        "import sys; from puf_client.cli.main import main; rc = main(sys.argv[1:]); print(*sys.modules); sys.exit(rc)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_nothing_heavy() -> None:
    assert not imported_by("--help") & {"torch", "grpc", "numpy", "structlog", "rich", "pydantic"}


@pytest.mark.parametrize("command", ["run", "unlearn"])
def test_help_of_a_command_imports_no_torch_and_no_grpc(command: str) -> None:
    assert not imported_by(command, "--help") & {"torch", "grpc", "numpy", "structlog", "rich"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == Exit.OK
    assert f"puf-client {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "COMMAND"),
        (["rum"], "did you mean run?"),
        (["run", "--data", "digits"], "--name"),
        (["run", "--name", "a b", "--data", "digits"], "cannot be a name"),
        (["run", "--name", "a"], "--data"),
        (["run", "--name", "a", "--serve", "x:1"], "did you mean --server?"),
        (["run", "--name", "a", "--data", "digits", "--shard", "10/10"], "I from 0 to N-1"),
        (["run", "--name", "a", "--data", "digits", "--shard", "3"], "3/10"),
        (["run", "--name", "a", "--data", "digits", "--patience", "-1"], "--patience"),
        (["unlearn", "--name", "a", "--kappa", "1", "--eta-u", "2"], "give one of them"),
        (["unlearn", "--name", "a", "--mode", "gentle"], "regular"),
        (["unlearn", "--name", "a", "--forget", "list.txt"], "--data"),
        (["--unlearn", "status", "--name", "a"], "cannot be combined with status"),
        (["fleet", "--data", "digits"], "clients"),
        (["fleet", "--data", "digits", "--clients", "3", "--except", "3"], "0 to 2"),
        (["fleet", "--data", "digits", "--clients", "2", "--except", "0,1"], "no client"),
        (["model"], "--out"),
        (["model", "--model", "no-such-net", "--out", "x"], "digits-cnn"),
        (["check", "--data", "no-such-data"], "digits"),
    ],
)
def test_wrong_arguments_give_one_helpful_line(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == Exit.USAGE
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_unlearn_can_be_a_flag_at_any_position(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--unlearn", "--kappa", "x"], ["--kappa", "x", "--unlearn"], ["run", "--unlearn", "--kappa", "x"]):
        assert main(argv) == Exit.USAGE
        assert "--kappa" in capsys.readouterr().err


def test_an_absent_server_has_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    server = ["--server", "127.0.0.1:1", "--patience", "0", "--name", "a"]
    for argv in (["run", "--data", "digits"], ["unlearn", "--yes"], ["status"], ["withdraw", "--yes"]):
        assert main([*argv, *server]) == Exit.UNREACHABLE
        assert "no server answers at 127.0.0.1:1" in capsys.readouterr().err


def test_all_commands_share_one_configuration_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "puf-client.toml"
    config.write_text(
        'server = "127.0.0.1:1"\nname = "a"\npatience = 0\ndata = "digits"\nshard = "1/3"\nrejoin = false\n'
    )
    assert main(["status", "--config", str(config)]) == Exit.UNREACHABLE
    monkeypatch.setenv("PUF_SERVER", "127.0.0.1:2")
    assert main(["status", "--config", str(config)]) == Exit.UNREACHABLE
    assert "127.0.0.1:2" in capsys.readouterr().err
    assert main(["status", "--config", str(config), "--server", "127.0.0.1:3"]) == Exit.UNREACHABLE
    assert "127.0.0.1:3" in capsys.readouterr().err
    config.write_text("sahrd = 1\n")
    assert main(["status", "--config", str(config)]) == Exit.USAGE
    assert "did you mean shard?" in capsys.readouterr().err


def test_unknown_data_is_refused_before_the_server_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    server = ["--server", "127.0.0.1:1", "--patience", "0", "--name", "a"]
    for command in (["run"], ["unlearn", "--yes"]):
        for data, says in (("mnist", "no built-in dataset 'mnist'"), ("cifar10", "cifar10 needs --data-dir")):
            assert main([*command, "--data", data, *server]) == Exit.USAGE
            error = capsys.readouterr().err
            assert says in error
            assert "no server answers" not in error


def test_an_impossible_port_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--name", "a", "--server", "localhost:99999"]) == Exit.USAGE
    assert "the port must lie between 1 and 65535" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == Exit.OK
    assert capsys.readouterr().out == f"puf-client {VERSION}\n"


def test_check_uses_a_server_only_from_a_flag_or_a_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "puf-client.toml"
    config.write_text('server = "127.0.0.1:1"\ndata = "digits"\npatience = 0\ndata_option = {per_client = "8"}\n')
    words = ["check", "--config", str(config), "--shard", "0/3"]
    # The file names a server for `run`. A check works without it.
    assert main(words) == Exit.OK
    monkeypatch.setenv("PUF_SERVER", "127.0.0.1:2")
    assert main(words) == Exit.UNREACHABLE
    assert "127.0.0.1:2" in capsys.readouterr().err


def test_ids_that_change_between_loads_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "unstable_ids.py").write_text(
        "import uuid, torch\n"
        "from torch.utils.data import TensorDataset\n"
        "from puf_client import ClientData\n"
        "def load(ctx):\n"
        "    d = TensorDataset(torch.zeros(4, 1, 8, 8), torch.zeros(4).long())\n"
        "    return ClientData(d, ids=[str(uuid.uuid4()) for _ in range(4)])\n"
    )
    assert main(["check", "--data", "unstable_ids:load"]) == Exit.USAGE
    assert "names its samples differently" in capsys.readouterr().err


def test_a_model_file_contains_its_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "w0.safetensors"
    assert main(["model", "--model", "digits-cnn", "--model-option", "classes=3", "--out", str(out)]) == Exit.OK
    manifest, metadata, _ = read_manifest(out)
    assert manifest.fingerprint.hex() in capsys.readouterr().out
    assert metadata["model"] == "digits-cnn"


def test_every_key_of_the_written_configuration_is_known() -> None:
    from puf_client.cli.scaffold import CONFIGURATION

    keys = {line.lstrip("# ").split(" = ")[0] for line in CONFIGURATION.splitlines() if " = " in line}
    assert keys <= set(options.RunOptions.model_fields)
