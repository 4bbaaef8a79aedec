"""The notebook in examples/ runs from a clean directory and shows that the client was forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

pytestmark = pytest.mark.e2e

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "forget.ipynb"


def test_the_notebook_runs_and_shows_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook: Any = nbformat.read(NOTEBOOK, 4)
    # What the last cells computed is read through one more cell.
    notebook.cells.append(nbformat.v4.new_code_cell("print(sessions[2].forgotten, *found['before'], *found['after'])"))
    nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)
    forgotten, *accuracies = shown[-1]["text"].split()
    known_before, _, known_after, unseen_after = map(float, accuracies)
    assert forgotten == "True"
    assert known_before > 90
    assert known_after < known_before - 10
    assert abs(known_after - unseen_after) < 20
    assert list(tmp_path.glob("receipt-*.json"))


def test_the_notebook_is_stored_with_its_picture_and_without_errors() -> None:
    notebook: Any = nbformat.read(NOTEBOOK, 4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error"]
