"""PUF in a job of FLARE's simulator, against PUF's own service on the same data."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from integrations.tests.reference import service_model

ROOT = Path(__file__).parents[2]
# Differences travel in float32, and FLARE adds them to float32 weights.
TOLERANCE = 2e-5


@pytest.mark.parametrize("mode", ["regular", "special"])
def test_a_job_of_the_simulator_gives_the_weights_of_the_service(mode: str, tmp_path: Path) -> None:
    expected = service_model(tmp_path / "service", 3, 1, rounds=4, recovery=3, mode=mode)
    out = tmp_path / "model.npz"
    command = [
        str(ROOT / ".venv-flare/bin/python"),
        "-m",
        "integrations.tests.flare_job",
        str(tmp_path / "work"),
        str(out),
        mode,
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(out) as found:
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE, err_msg=name)


def test_the_page_shows_lines_of_the_job_that_runs_above() -> None:
    page, job = (ROOT / "docs" / "flare.md").read_text(), (ROOT / "integrations/tests/flare_job.py").read_text()
    lines = page.split("```python\n")[1].split("```")[0].splitlines()
    assert len(lines) > 3
    assert {line.strip() for line in lines} <= {line.strip() for line in job.splitlines()}
