"""A setting so small that an experiment with all its runs takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.settings_files import load_experiment

TINY = """
base = "digits"
title = "Tiny"
note = "Too small for any conclusion <>."
rounds = 2
targets = [0, 1]
recovery_rounds = 2
horizon = 1
persistence = [1]
methods = ["natural", "puf-special", "puf-regular"]
[data]
clients = 3
options = { per_client = 20 }
"""


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def tiny(tiny_file: Path) -> ExperimentSpec:
    return load_experiment(str(tiny_file))
