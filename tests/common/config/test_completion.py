"""`--completion`: the script of each program completes commands and flags in a real bash."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from puf_client.cli.main import main as client
from puf_lab.cli.main import main as lab
from puf_server.cli.main import main as server

PROGRAMS = {"puf-server": server, "puf-client": client, "puf-lab": lab}


def script(program: str, shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert PROGRAMS[program](["--completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "typed", "completed"),
    [
        ("puf-server", ["tick"], {"tickets"}),
        ("puf-server", ["serve", "--tls-c"], {"--tls-cert"}),
        ("puf-server", ["init", "--plan-start"], {"--plan-start-clients"}),
        ("puf-server", ["tickets", "app"], {"approve"}),
        ("puf-client", ["unl"], {"unlearn"}),
        ("puf-client", ["run", "--data-o"], {"--data-option"}),
        ("puf-lab", ["qual"], {"quality"}),
        ("puf-lab", ["demo", "--mode", "sp"], {"special"}),
    ],
)
def test_bash_completes(
    program: str, typed: list[str], completed: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script").write_text(script(program, "bash", capsys))
    words = " ".join([program, *typed])
    ask = (
        f"source ./script; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; "
        f"$(complete -p {program} | sed 's/.*-F \\([^ ]*\\) .*/\\1/'); printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == completed


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_script_for_zsh_names_the_program(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(program, "zsh", capsys)
    assert text.startswith(f"#compdef {program}\n")
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n"], input=text, text=True, check=True)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert client(["--completion", "cmd"]) != 0
    assert "'cmd' is not one of bash, zsh" in capsys.readouterr().err


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_version_is_that_of_the_distribution(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert PROGRAMS[program](["--version"]) == 0
    assert capsys.readouterr().out == f"{program} {version('puf-fl')}\n"
