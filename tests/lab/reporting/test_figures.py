"""Figures of many methods: each gets a panel, and names stay readable."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.text import Text

from puf_lab.reporting import plots
from puf_lab.reporting.curves import recovery_curves
from puf_lab.reporting.radar import radar
from puf_lab.reporting.results import Results, Run
from puf_lab.reporting.style import MOST_IN_A_PANEL, new_figure
from puf_lab.reporting.summary import Summary, summarise
from puf_lab.spec.settings_files import load_experiment
from puf_lab.spec.variants import METHODS

TARGETS = range(3)


def trained(method: str, target: int, forget: float) -> Run:
    values = {"trained": {"test": 80.0, "forget": forget + target, "rmia": 50.0 + forget / 10}}
    return Run(method, METHODS[method].label, str(target), 1, values=values, nbytes=900, samples=900)


def forgetting(method: str, target: int, forget: float, rounds: int) -> Run:
    stages = {"unlearned": 0, "recovered": rounds}
    end = {key: {"test": 80.0, "forget": forget + 2 * target, "rmia": 51.0} for key in stages}
    curve = [(number, 70.0 + number, forget) for number in range(rounds + 1)]
    return Run(method, METHODS[method].label, str(target), 1, target > 0, stages, 100, 100, rounds, 1.0, end, curve)


@pytest.fixture
def summary() -> Summary:
    """Twelve methods of which seven are close to each other and to the floor."""
    names = [name for name, method in METHODS.items() if method.kind in ("natural", "forget")][:12]
    runs = [
        trained(name, t, f) for t in TARGETS for name, f in (("original", 99.0), ("retrain", 60.0), ("floor", 62.0))
    ]
    runs += [
        forgetting(name, t, 61.0 + 0.1 * i if i < 7 else 70.0 + 2 * i, 3 + i // 4)
        for t in TARGETS
        for i, name in enumerate(names)
    ]
    facts = {"commit": "", "device": "cpu", "parameters": 10, "samples_per_client": [60] * 10, "command": "x"}
    return summarise(Results(load_experiment("digits").described(), [facts], runs))


def test_names_in_the_scatter_do_not_cover_each_other(summary: Summary) -> None:
    figure = new_figure(8.6, 6.2)
    axes = figure.subplots()
    names = plots.scatter_on(axes, summary)
    figure.tight_layout()
    plots.separate(axes, names)
    for name in names:
        name.get_window_extent()
    boxes = {name.get_text(): Text.get_window_extent(name) for name in names}
    assert len(boxes) == len(summary.recovering)
    assert [(a, b) for a, b in combinations(boxes, 2) if boxes[a].overlaps(boxes[b])] == []


def test_many_methods_get_a_panel_each(summary: Summary, tmp_path: Path) -> None:
    assert len(summary.recovering) > MOST_IN_A_PANEL
    for draw in (recovery_curves, radar):
        draw(tmp_path / "figure.png", summary)
        size = (tmp_path / "figure.png").read_bytes()[16:24]
        width, height = (int.from_bytes(size[i : i + 4], "big") for i in (0, 4))
        assert (width, height > 1100) == (1800, True), "three lines of four panels"
