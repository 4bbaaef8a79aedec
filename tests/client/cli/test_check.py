"""`puf-client check`: tries the configured data, model and task, and names them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from puf_client.cli.main import main
from puf_common.config.exit_codes import Exit

WRONG_SHAPE = """
import torch
from torch.utils.data import TensorDataset
from puf_client import ClientData

def load(ctx):
    data = TensorDataset(torch.zeros(6, 3, 5, 5), torch.zeros(6).long())
    return ClientData(data, ids=[f"s{i}" for i in range(6)])
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("my_task", "wrong_shape"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def test_the_files_of_init_pass_and_the_users_model_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == Exit.OK
    assert main(["check", "--config", "puf-client.toml"]) == Exit.OK
    out = capsys.readouterr().out
    for text in ("200 training samples in 20 groups", "the same when loaded twice", "computing on", "MB", "per batch"):
        assert text in out
    assert "model     my_task:build: 2,146 parameters" in out
    assert "everything is in order: my_task:load with the model my_task:build and the task my_task:Task" in out
    assert "digits-cnn" not in out


def test_init_does_not_overwrite_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "my_task.py").write_text("my code")
    assert main(["init"]) == Exit.USAGE
    assert "exists; nothing was written" in capsys.readouterr().err
    assert (here / "my_task.py").read_text() == "my code"
    assert not (here / "puf-client.toml").exists()


def test_the_users_data_without_a_model_is_not_in_order(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == Exit.OK
    assert main(["check", "--data", "my_task:load"]) == Exit.USAGE
    printed = capsys.readouterr()
    assert "no model was tried: set --model" in printed.err
    assert "everything is in order" not in printed.out


def test_built_in_data_is_tried_with_a_built_in_model_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--data", "digits", "--shard", "0/3", "--data-option", "per_client=8"]) == Exit.OK
    assert "model     digits-cnn: " in capsys.readouterr().out


def test_data_of_the_wrong_shape_is_one_clear_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "wrong_shape.py").write_text(WRONG_SHAPE)
    assert main(["check", "--data", "wrong_shape:load", "--model", "digits-cnn"]) == Exit.USAGE
    error = capsys.readouterr().err
    assert "the training data, x of shape (2, 3, 5, 5)" in error
    assert "does not fit the model and the task" in error
    assert "internal error" not in error


def test_without_torch_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from puf_client.cli.main import main\n"
        "sys.exit(main(['check', '--data', 'digits']))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == Exit.USAGE
    assert "puf-client check needs PyTorch, which is not installed: install puf-fl[train]" in done.stderr
    assert "internal error" not in done.stderr
