"""Own data, model, task, partition and metric in the lab, from the files that `puf-client init` writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas
import pytest

import puf_lab
from puf_client.cli.main import main as client
from puf_client.data.partition import partition
from puf_common.errors import UsageError
from puf_lab.reporting.summary import summarise

SETTING = """
title = "Mine"
rounds = 2
targets = [0]
recovery_rounds = 1
horizon = 1
persistence = []
methods = ["natural", "puf-regular"]
task = "my_task:Task"
[data]
name = "my_task:load"
clients = 3
[model]
name = "my_task:build"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the template, as the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("my_task", None)
    assert client(["init"]) == 0
    (tmp_path / "mine.toml").write_text(SETTING)
    return tmp_path


def test_the_template_runs_in_the_lab(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "my_metric.py").write_text("def spread(outputs):\n    return float(outputs.forget.losses.std())\n")
    frame = puf_lab.run("mine.toml", cache=own / "cache", metrics=["my_metric:spread"], out=own / "out")
    assert isinstance(frame, pandas.DataFrame)
    found = set(frame[["label", "stage", "metric"]].itertuples(index=False, name=None))
    for metric in ("test", "forget", "rmia", "spread", "closer"):
        assert ("PUF-Regular", "recovered", metric) in found
    assert frame["value"].dtype == "float64"
    assert (own / "out" / "results.jsonl").exists()

    # The same runs from the cache, with what is beside the values.
    results = puf_lab.run_results("mine.toml", cache=own / "cache", metrics=["my_metric:spread"])
    pandas.testing.assert_frame_equal(results.frame(), frame)
    assert results.table() == frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert results.facts[0]["federation"] == "in-process"
    assert {row.label for row in summarise(results).rows} == set(frame["label"])

    # An entry of None stands for a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install 'puf-fl\[lab\]'"):
        puf_lab.run("mine.toml", cache=own / "other")
    assert not (own / "other").exists(), "refused before the first run"


def test_only_the_frame_imports_pandas() -> None:
    program = "import sys, puf_lab.experiments.api, puf_lab.cli.main; puf_lab.run; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_data_without_a_test_set_is_refused_before_the_first_run(own: Path) -> None:
    code = (own / "my_task.py").read_text()
    (own / "no_test.py").write_text(code.replace("def test_set(", "def other_set("))
    (own / "mine.toml").write_text(SETTING.replace("my_task", "no_test"))
    with pytest.raises(UsageError, match=r"needs a function test_set\(ctx\) in no_test"):
        puf_lab.run("mine.toml", cache=own / "cache")
    assert not (own / "cache").exists()


def test_a_partition_of_the_users_code(own: Path) -> None:
    (own / "my_split.py").write_text(
        "import numpy as np\n"
        "def by_label(labels, shards, seed):\n    return [np.flatnonzero(labels == i) for i in range(shards)]\n"
        "def twice(labels, shards, seed):\n    return [[0, 1], [1, 2]]\n"
        "def few(labels, shards, seed):\n    return [[0]]\n"
    )
    assert [part.tolist() for part in partition([1, 0, 1], 2, "my_split:by_label", 1)] == [[1], [0, 2]]
    with pytest.raises(UsageError, match="at most once"):
        partition([1, 0, 1], 2, "my_split:twice", 1)
    with pytest.raises(UsageError, match="must return 2 lists"):
        partition([1, 0, 1], 2, "my_split:few", 1)
