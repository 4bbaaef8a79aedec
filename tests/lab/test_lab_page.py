"""The settings, the code and the first commands of docs/lab.md work as written. `test_own_method.py` has its method."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
from tests.e2e.pasting import blocks

from puf_client.cli.main import main as puf_client
from puf_client.data.partition import partition
from puf_common.config.exit_codes import Exit
from puf_lab.cli.main import main as puf_lab
from puf_lab.spec.settings_files import load_experiment

PAGE = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
SETTINGS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
SMALL = 'rounds = 1\nrecovery_rounds = 1\nhorizon = 1\npersistence = []\nmethods = ["natural"]\n'
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[SPLIT] = [block for block in CODE if "def by_label" in block]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The reader's directory, with the files of `puf-client init` and a small version of the page's setting."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    _unload()
    assert puf_client(["init"]) == Exit.OK
    Path("my_split.py").write_text(SPLIT)
    Path("mine.toml").write_text(SMALL + SETTINGS[2])
    yield tmp_path
    _unload()


def _unload() -> None:
    """Other tests write modules of the same names."""
    for name in ("my_task", "my_split"):
        sys.modules.pop(name, None)


def run(line: str) -> None:
    program, *words = shlex.split(line, comments=True)
    assert program == "puf-lab"
    assert puf_lab(["mine.toml" if word == "digits" else word for word in words]) == Exit.OK, line


def test_the_partition(here: Path) -> None:
    parts = partition([0, 1, 2, 3, 4], 2, "my_split:by_label", 1)
    assert [part.tolist() for part in parts] == [[0, 2, 4], [1, 3]]


def test_the_code_and_the_first_commands(here: Path) -> None:
    [code] = [block for block in CODE if "import puf_lab" in block]
    names: dict[str, Any] = {}
    exec(code, names)
    assert isinstance(names["frame"], pandas.DataFrame)
    assert set(names["frame"]["seed"]) == {1, 2}
    assert set(names["means"].index.get_level_values("label")) == set(names["frame"]["label"])
    for line in blocks(PAGE)[0].splitlines():
        run(line)
    assert (here / "runs" / "report" / "report.html").exists()


def test_the_settings(here: Path) -> None:
    small, tuned, own = SETTINGS
    Path("small.toml").write_text(small)
    found = load_experiment("small.toml")
    assert (found.targets, found.horizon) == (((0,), (3,), (1, 2)), 5)
    Path("own.toml").write_text(own)
    assert load_experiment("own.toml").title == "Mine"
    [chosen] = re.findall(r'"(runs/[^"]+)"', tuned)
    Path(chosen).parent.mkdir(parents=True)
    Path(chosen).write_text("")
    Path("tuned.toml").write_text(tuned)
    assert load_experiment("tuned.toml").targets == load_experiment("digits-all").targets
