"""Figures of an experiment: label distribution, recovery curves, tuning scatter. The radar has a module of its own."""

from __future__ import annotations

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
    ORANGE,
    colour,
    legend_below,
    marker,
    new_figure,
    stroke,
    style_axes,
)
from puf_lab.reporting.summary import Summary, SummaryRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox


def label_distribution(path: Path, counts: Sequence[Sequence[int]], title: str) -> None:
    """Samples per class and client. The area of a dot is a number of samples; the bars above are totals per client."""
    table = np.asarray(counts, np.float64)
    if table.ndim != 2 or not table.size:
        raise UsageError("a label distribution needs a row of counts per client")
    clients, classes = table.shape
    figure = new_figure(max(6.0, 0.7 * clients + 2), max(4.0, min(9.0, 0.16 * classes + 2.2)))
    top, axes = figure.subplots(2, 1, height_ratios=[1, 4], sharex=True)
    top.bar(range(clients), table.sum(1), color=BLUE, width=0.6)
    for client, size in enumerate(table.sum(1)):
        top.annotate(f"{size:.0f}", (client, size), ha="center", va="bottom", fontsize=8, color=INK)
    top.set_ylim(0, 1.25 * table.sum(1).max())
    style_axes(top, title, y="samples")
    holders, held = np.nonzero(table)
    sizes = 90 * table[holders, held] / table.max()
    axes.scatter(holders, held, s=sizes, color=ORANGE, alpha=0.85, linewidths=0)
    axes.set_ylim(-1, classes)
    axes.set_xticks(range(clients))
    style_axes(axes, x="client", y="class")
    figure.tight_layout()
    figure.savefig(path)


def mean_curve(runs: Sequence[Run], which: int) -> tuple[list[int], list[float]]:
    """Mean over the runs, for the rounds that all of them have. `which` is 1 for test, 2 for forget accuracy.

    Methods with several unlearning rounds begin before round 0, and not all runs at the same round.
    """
    curves = [{point[0]: point[which] for point in run.curve} for run in runs]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    return rounds, [float(np.mean([curve[number] for curve in curves])) for number in rounds]


def recovery_curves(path: Path, summary: Summary) -> None:
    """Test and forget accuracy after unlearning, one line per method. Dotted is the retrained model, dashed the original.

    The band around the retrained model is the noise floor: what another training seed changes.
    """
    rows = _recovering(summary)
    unit = "Dice" if summary.results.experiment["task"] == "segmentation" else "accuracy"
    figure = new_figure(10.5, 4.6)
    left, right = figure.subplots(1, 2)
    for axes, which, name in ((left, 1, "test"), (right, 2, "forget")):
        for i, row in enumerate(rows):
            rounds, values = mean_curve(summary.results.of(row.method), which)
            axes.plot(
                rounds, values, color=colour(i), marker=marker(i), linestyle=stroke(i), linewidth=1.8, markersize=4.5,
                markevery=max(1, len(rounds) // 12), label=short_name(summary, row),
            )  # fmt: skip
        noise, retrained = summary.noise(name), summary.row("retrain")
        if noise is not None and retrained is not None:
            level = retrained.values[name].mean
            axes.axhspan(level - noise, level + noise, color=BAND, label="noise floor", zorder=0)
        for method, style in (("retrain", ":"), ("original", "--")):
            reference = summary.row(method)
            if reference is not None:
                label = f"{reference.label} (level)"
                axes.axhline(reference.values[name].mean, color=INK, linestyle=style, linewidth=1.4, label=label)
        style_axes(axes, f"{name} {unit}, %", x="rounds after unlearning", whole=True)
    legend_below(figure, left)
    figure.savefig(path)


def scatter(path: Path, summary: Summary) -> None:
    """The tuning figure: recovery rounds and distance in forget accuracy. Closer to the origin is better."""
    figure = new_figure(7.6, 5.4)
    labels = scatter_on(figure.subplots(), summary)
    figure.tight_layout()
    _separate(labels)
    figure.savefig(path)


def scatter_on(axes: Axes, summary: Summary) -> list[Annotation]:
    """Draws the points and the band of the noise floor. Returns the names of the methods, which may cover each other."""
    rows = _recovering(summary)
    families = list(dict.fromkeys(row.method.split()[0] for row in rows))
    labels = []
    for row in sorted(rows, key=lambda row: row.deltas["forget"].mean):
        i = families.index(row.method.split()[0])
        assert row.recovery is not None
        delta = row.interval("forget")
        assert delta is not None
        all_recovered = row.recovery.recovered == row.recovery.targets
        ends = [] if delta.low is None or delta.high is None else [[delta.mean - delta.low], [delta.high - delta.mean]]
        axes.errorbar(
            row.recovery.mean, delta.mean, yerr=ends or None, fmt=marker(i), color=colour(i),
            markerfacecolor=colour(i) if all_recovered else "white", markersize=8, elinewidth=1.2, capsize=3, alpha=0.9,
        )  # fmt: skip
        point = (row.recovery.mean, delta.mean)
        labels.append(
            axes.annotate(
                row.label, point, xytext=(7, -4), textcoords="offset points",
                fontsize=8.5, va="center", color=colour(i), fontweight="bold",
            )
        )  # fmt: skip
    noise = summary.noise("forget")
    if noise is not None:
        axes.axhspan(0, noise, color=BAND, zorder=0)
        axes.annotate("noise floor", (0, noise), xytext=(4, -3), textcoords="offset points", va="top", fontsize=8)
    furthest = max(row.recovery.mean for row in rows if row.recovery)
    axes.set_xlim(0, max(2.0, 1.25 * furthest))
    axes.set_ylim(bottom=0)
    x = "recovery rounds to the retrained model's test score (hollow: some runs did not recover)"
    style_axes(axes, "closer to the origin is better", x=x, y="Δ forget, points from the retrained model", whole=True)
    return labels


def _separate(labels: Sequence[Annotation]) -> None:
    """Moves each label up, beginning with the lowest point, until it covers no earlier one."""
    placed: list[Bbox] = []
    for label in labels:
        while any(label.get_window_extent().overlaps(other) for other in placed):
            right, up = label.get_position()
            label.set_position((right, up + 2))
        placed.append(label.get_window_extent())


def _recovering(summary: Summary) -> list[SummaryRow]:
    if not summary.recovering:
        raise UsageError("there is no method that recovers among these runs")
    return summary.recovering
