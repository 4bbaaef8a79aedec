"""The user's method and metric of docs/lab.md, run as the page says."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from puf_common.config.exit_codes import Exit
from puf_lab.cli.main import main
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.jobs import jobs_of
from puf_lab.experiments.measuring import score
from puf_lab.reporting.results import read
from puf_lab.spec.settings_files import load_experiment

DOCUMENT = (Path(__file__).parents[3] / "docs" / "lab.md").read_text()


def test_the_users_method_and_metric(tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL) if "class Clipped" in c]
    assert len(code.splitlines()) < 65, "about fifty lines"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "clipped.py").write_text(code)
    (command,) = re.findall(r"^puf-lab (run digits --method.*)$", DOCUMENT, re.MULTILINE)
    words = shlex.split(command.replace("digits", tiny_file.name))
    assert main([*words, "--targets", "0", "--methods", "natural"]) == Exit.OK
    assert main(["report"]) == Exit.OK
    (results,) = read([tmp_path / "runs" / "tiny"])
    assert results.methods == ["original", "retrain", "floor", "natural", "clipped:Clipped", "clipped:Clipped clip=1"]
    for run in results.runs:
        assert all(0 <= values["sure"] <= 100 for values in run.values.values())
    gentle, harsh = (results.of(method)[0] for method in results.methods[-2:])
    assert gentle.curve[0] != harsh.curve[0], "options reach the method"
    assert gentle.samples == 20 + 40 * gentle.stages["recovered"], "the target alone trains, then the others"
    assert "Clipped clip=1" in (tmp_path / "runs/report/tiny/efficacy.csv").read_text()

    # Changed code gives new figures. Runs that do not depend on it stay in the cache.
    (tmp_path / "clipped.py").write_text(code.replace("> 0.9", "> 2.0").replace("Field(2.0,", "Field(1.0,"))
    for name in ("clipped", "clipped.Clipped"):
        sys.modules.pop(name, None)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/cache/*/outcome.json")}
    changed = load_experiment(tiny_file.name).narrowed(targets=[(0,)], methods=["natural", "clipped:Clipped"])
    cache = Cache(tmp_path / "runs" / "cache")
    assert {job.kind: cache.has(job) for job in jobs_of(changed)} == {
        "original": True, "retrain": True, "natural": True, "forget": False,
    }  # fmt: skip
    (natural,) = (job for job in jobs_of(changed) if job.kind == "natural")
    assert score(natural, (0,), cache, ("clipped:sure",))["recovered"] == {"sure": 0.0}
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
