"""`puf-lab quality` on a tiny setting: table, rows, provenance, resumption, skipped settings, exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.conftest import TINY

from puf_common.config.exit_codes import Exit
from puf_lab.cli.main import main
from puf_lab.reporting.quality_table import quality_sheet

GOALS = """
[goals]
forget = {bound}
rmia = {bound}
dip = {bound}
"""


def setting(path: Path, bound: float) -> Path:
    """A tiny setting that is completed by the service, with hold-out data."""
    text = TINY.replace("per_client = 20", "per_client = 20, holdout = 0.2").replace('"natural", ', "")
    path.write_text(text.replace("rounds = 2", 'stop = "product"\nrounds = 3', 1) + GOALS.format(bound=bound))
    return path


def quality(path: Path, out: Path, *more: str) -> int:
    cache = str(out.parent / "cache")
    settings = f"{path},cifar100-iid"
    return main(["quality", "--settings", settings, "--out", str(out), "--cache", cache, "--seeds", "1", *more])


def test_a_table_says_which_goals_are_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = setting(tmp_path / "tiny.toml", 1000.0)
    path.write_text(path.read_text().replace("targets = [0, 1]", "targets = [0, 1, 2]"))
    assert quality(path, tmp_path / "out", "--targets", "3") == Exit.OK
    printed = capsys.readouterr().out
    assert "[0/" in printed.split("started:")[0], "progress is shown before the first run is done"
    assert "quality-cifar100-iid: skipped, cifar100 needs --data-dir" in " ".join(printed.split())
    rows = json.loads((tmp_path / "out" / "quality.json").read_text())
    assert [(row["method"], row["runs"], row["targets"], row["seeds"]) for row in rows] == [
        ("puf-special epochs=1", 3, 3, 1),
        ("puf-regular epochs=1", 3, 3, 1),
    ]
    first, second = rows
    assert [goal["name"] for goal in first["goals"]] == ["Δ forget", "Δ forget +1", "Δ RMIA", "Δ RMIA +1", "dip"]
    assert first["floor"]["forget"]["mean"] >= 0
    assert first["goals"][0]["bound"] == pytest.approx(first["floor"]["forget"]["mean"] + 1000, abs=1e-3)
    assert first["against"] == {}
    assert second["against"]["method"] == "puf-special epochs=1"
    assert second["against"]["forget"]["mean"] == pytest.approx(
        second["forget"]["mean"] - first["forget"]["mean"], abs=1e-3
    )
    # Special: the target trains one epoch, then 2 others in every recovery round. Regular: all 3 train first.
    assert first["epochs"] == pytest.approx(1 + 2 * first["recovery_rounds"], abs=1e-3)
    assert second["epochs"] == pytest.approx(3 + 2 * second["recovery_rounds"], abs=1e-3)
    for row in rows:
        assert row["device"][0].startswith("cpu ")
        assert (row["federation"], len(row["code"])) == (["in-process"], 1)
        assert row["dip_worst"] <= row["dip"]["mean"]
    table = (tmp_path / "out" / "quality.md").read_text()
    assert table.count("met |") == 2
    assert quality_sheet(rows, [], short=True).rows[0][0] == "tiny"

    # A second time nothing is run. Goals that cannot be met are a failure.
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("*/outcome.json")}
    assert quality(setting(path, 1e-6), tmp_path / "out", "--targets", "3") == Exit.USAGE, (
        "two targets cannot be judged"
    )
    path.write_text(path.read_text().replace("targets = [0, 1]", "targets = [0, 1, 2]"))
    assert quality(path, tmp_path / "out") == Exit.FAILURE
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("*/outcome.json")} == made
    assert "missed: Δ" in (tmp_path / "out" / "quality.md").read_text()
