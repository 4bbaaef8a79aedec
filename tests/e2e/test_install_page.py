"""The commands of the page on installation work, and the archives are complete."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.e2e.federation import environment

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def test_the_commands_of_the_page_work_in_bash(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "install.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    env = environment(tmp_path, HOME=str(tmp_path))
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    text = "\n".join(["set -eu", *blocks, "complete -p puf-server puf-client puf-lab"])
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^puf-\w+ \d+\.\d+", done.stdout, re.MULTILINE)) == 3
    assert len(re.findall(r"^complete .*-F", done.stdout, re.MULTILINE)) == 3
    written = tmp_path / ".local/share/bash-completion/completions"
    assert {path.name for path in written.iterdir()} == {"puf-server", "puf-client", "puf-lab"}
    assert all(path.stat().st_size > 1000 for path in written.iterdir())


def test_the_wheel_is_built_from_a_complete_sdist(tmp_path: Path) -> None:
    """The rest of `make dist` installs from the package index and runs the demo."""
    built = [sys.executable, str(ROOT / "deploy" / "try_dist.py"), "--build-only", "--dist", str(tmp_path)]
    done = subprocess.run(built, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [archive] = tmp_path.glob("puf_fl-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "LICENSE", "client/puf_client/api/connect.py", "protos/puf/v1/federation.proto"} <= names
    assert not [name for name in names if name.startswith((".venv", "runs", ".git/"))]
    assert len(list(tmp_path.glob("puf_fl-*.whl"))) == 1
