"""The figure of recovery: test and forget score of every round after unlearning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from puf_common.errors import UsageError
from puf_lab.reporting.marks import short_name
from puf_lab.reporting.results import Run
from puf_lab.reporting.style import (
    BAND,
    BLUE,
    INK,
    MOST_IN_A_PANEL,
    ORANGE,
    colour,
    legend_below,
    marker,
    new_figure,
    style_axes,
)
from puf_lab.reporting.summary import Summary, SummaryRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 4
# Place in a curve's points, name, colour, marker and stroke, where one panel has both scores.
_SCORES = ((1, "test", BLUE, "o", "-"), (2, "forget", ORANGE, "s", "--"))


def mean_curve(runs: Sequence[Run], which: int) -> tuple[list[int], list[float]]:
    """Mean over the runs, for the rounds that all of them have. `which` is 1 for test, 2 for forget accuracy.

    Methods with several unlearning rounds begin before round 0, and not all runs at the same round.
    """
    curves = [{point[0]: point[which] for point in run.curve} for run in runs]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    return rounds, [float(np.mean([curve[number] for curve in curves])) for number in rounds]


def recovery_curves(path: Path, summary: Summary) -> None:
    """Scores after unlearning. Dotted is the level of Retrain, dash-dotted that of Original. Many methods get a panel each.

    The band around Retrain is the noise floor: what another training seed changes.
    """
    rows = summary.recovering
    if not rows:
        raise UsageError("there is no method that recovers among these runs")
    if len(rows) > MOST_IN_A_PANEL:
        _panel_for_each(path, summary, rows)
    else:
        _panel_for_each_score(path, summary, rows)


def _panel_for_each_score(path: Path, summary: Summary, rows: Sequence[SummaryRow]) -> None:
    """Test score on the left, forget score on the right, one line for each method."""
    figure = new_figure(10.5, 4.6)
    left, right = figure.subplots(1, 2)
    for axes, which, name in ((left, 1, "test"), (right, 2, "forget")):
        for i, row in enumerate(rows):
            rounds, values = mean_curve(summary.results.of(row.method), which)
            axes.plot(
                rounds, values, color=colour(i), marker=marker(i), linewidth=1.8, markersize=4.5,
                markevery=max(1, len(rounds) // 12), label=short_name(summary, row),
            )  # fmt: skip
        for method, line in (("retrain", ":"), ("original", "-.")):
            _level(axes, summary, method, name, INK, line)
        _floor(axes, summary, name)
        style_axes(axes, f"{name} {_unit(summary)}, %", x="rounds after unlearning", whole=True)
    legend_below(figure, left)
    figure.savefig(path)


def _panel_for_each(path: Path, summary: Summary, rows: Sequence[SummaryRow]) -> None:
    """A panel for each method with both scores, on the same axes in all panels."""
    lines = math.ceil(len(rows) / _COLUMNS)
    figure = new_figure(12, 2.5 * lines + 0.8)
    panels = figure.subplots(lines, _COLUMNS, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, row in zip(panels, rows, strict=False):
        for which, name, shade, point, line in _SCORES:
            rounds, values = mean_curve(summary.results.of(row.method), which)
            panel.plot(
                rounds, values, color=shade, marker=point, linestyle=line, linewidth=1.6, markersize=4,
                markevery=max(1, len(rounds) // 8), label=f"{name} {_unit(summary)}, %",
            )  # fmt: skip
            _level(panel, summary, "retrain", name, shade, ":", f", {name}")
            _floor(panel, summary, name)
        _level(panel, summary, "original", "forget", INK, "-.", ", forget")
        style_axes(panel, short_name(summary, row), whole=True)
        panel.tick_params(labelbottom=True)
    for panel in panels[len(rows) :]:
        panel.set_visible(False)
    for panel in panels[max(0, len(rows) - _COLUMNS) : len(rows)]:
        panel.set_xlabel("rounds after unlearning", color=INK)
    legend_below(figure, panels[0])
    figure.savefig(path)


def _level(axes: Axes, summary: Summary, method: str, name: str, shade: str, line: str, suffix: str = "") -> None:
    """A line at the score of a model that is not followed round by round."""
    row = summary.row(method)
    if row is not None:
        label = f"{row.label} (level{suffix})"
        axes.axhline(row.values[name].mean, color=shade, linestyle=line, linewidth=1.3, label=label, zorder=1)


def _floor(axes: Axes, summary: Summary, name: str) -> None:
    """The noise floor around Retrain's score. With both scores in a panel, the legend names it once."""
    noise, retrained = summary.noise(name), summary.row("retrain")
    if noise is None or retrained is None:
        return
    level, known = retrained.values[name].mean, axes.get_legend_handles_labels()[1]
    label = None if "noise floor" in known else "noise floor"
    axes.axhspan(level - noise, level + noise, color=BAND, label=label, zorder=0)


def _unit(summary: Summary) -> str:
    return "Dice" if summary.results.experiment["task"] == "segmentation" else "accuracy"
