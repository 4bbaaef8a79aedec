"""Figures of an experiment: label distribution, and recovery rounds with distance to Retrain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from puf_common.errors import UsageError
from puf_lab.reporting.marks import short_name
from puf_lab.reporting.style import BAND, BLUE, FAINT, INK, ORANGE, colour, marker, new_figure, style_axes
from puf_lab.reporting.summary import Summary, SummaryRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

# Where the name of a point may be, in typographic points from it, best first.
_PLACES = [
    (side * right, up)
    for right, up in ((9, 0), (9, 9), (9, -9), (14, 18), (14, -18), (20, 28), (20, -28), (30, 40), (30, 54))
    for side in (1, -1)
]


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
    axes.set_ylim(-0.8, classes - 0.2)
    axes.set_xticks(range(clients))
    axes.yaxis.get_major_locator().set_params(integer=True)
    style_axes(axes, x="client", y="class")
    figure.tight_layout()
    figure.savefig(path)


def scatter(path: Path, summary: Summary) -> None:
    """The tuning figure: recovery rounds and distance in forget accuracy. Closer to the origin is better."""
    figure = new_figure(8.6, 6.2)
    axes = figure.subplots()
    names = scatter_on(axes, summary)
    figure.tight_layout()
    separate(axes, names)
    figure.savefig(path)


def scatter_on(axes: Axes, summary: Summary) -> list[Annotation]:
    """Draws the points and the band of the noise floor. Returns the names of the methods, which may cover each other."""
    rows = _recovering(summary)
    families = list(dict.fromkeys(row.method.split()[0] for row in rows))
    names = []
    for row in sorted(rows, key=lambda row: row.deltas["forget"].mean):
        i = families.index(row.method.split()[0])
        assert row.recovery is not None
        delta = row.interval("forget")
        assert delta is not None
        all_recovered = row.recovery.recovered == row.recovery.targets
        ends = [] if delta.low is None or delta.high is None else [[delta.mean - delta.low], [delta.high - delta.mean]]
        axes.errorbar(
            row.recovery.mean, delta.mean, yerr=ends or None, fmt=marker(i), color=colour(i), markeredgewidth=1.6,
            markerfacecolor=colour(i) if all_recovered else "white", markersize=8, elinewidth=1.0, capsize=3,
        )  # fmt: skip
        names.append(_named(axes, short_name(summary, row), (row.recovery.mean, delta.mean)))
    noise = summary.noise("forget")
    if noise is not None:
        axes.axhspan(0, noise, color=BAND, zorder=0)
        axes.annotate("noise floor", (0.99, 0.01), xycoords="axes fraction", ha="right", va="bottom", fontsize=8)
    furthest = max(row.recovery.mean for row in rows if row.recovery)
    axes.set_xlim(0, max(2.0, 1.2 * furthest))
    axes.set_ylim(bottom=0)
    x = "recovery rounds to the retrained model's test score (hollow: some runs did not recover)"
    style_axes(axes, "closer to the origin is better", x=x, y="Δ forget, points from the retrained model", whole=True)
    return names


def _named(axes: Axes, name: str, point: tuple[float, float]) -> Annotation:
    """The name beside its point, with a line to it that is seen once the name is moved away."""
    from matplotlib.patheffects import withStroke

    return axes.annotate(
        name, point, xytext=_PLACES[0], textcoords="offset points", fontsize=8.5, color=INK, va="center", zorder=5,
        arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 5},
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
    )  # fmt: skip


def separate(axes: Axes, names: Sequence[Annotation]) -> None:
    """Moves each name to the place beside its point where it covers least: no point or earlier name, then no interval."""
    from matplotlib.collections import LineCollection
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    points = [axes.transData.transform(name.xy) for name in names]
    taken = [Bbox.from_extents(x - 9, y - 9, x + 9, y + 9) for x, y in points]
    lines = [line for drawn in axes.collections if isinstance(drawn, LineCollection) for line in drawn.get_segments()]
    bars = [Bbox(axes.transData.transform(line)).padded(3) for line in lines]
    inside = axes.get_window_extent()

    def box_at(name: Annotation, place: tuple[int, int]) -> Bbox:
        name.set_position(place)
        name.set_horizontalalignment("left" if place[0] > 0 else "right")
        name.get_window_extent()  # moves the text to its place; the result would contain the line to the point
        return Text.get_window_extent(name)

    def covered(box: Bbox) -> float:
        outside = bool(box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0)
        return 100.0 * outside + 10.0 * int(box.count_overlaps(taken)) + int(box.count_overlaps(bars))

    for name in names:
        best = min(_PLACES, key=lambda place: covered(box_at(name, place)))
        taken.append(box_at(name, best))


def _recovering(summary: Summary) -> list[SummaryRow]:
    if not summary.recovering:
        raise UsageError("there is no method that recovers among these runs")
    return summary.recovering
