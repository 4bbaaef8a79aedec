"""The radar figure: one axis per metric and cost. The centre is Retrain, so a smaller polygon is better, as in the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from puf_common.errors import UsageError
from puf_lab.reporting.marks import short_name
from puf_lab.reporting.style import BAND, FAINT, GRID, INK, MOST_IN_A_PANEL, colour, legend_below, marker, new_figure
from puf_lab.reporting.summary import Summary, SummaryRow, compared


def radar(path: Path, summary: Summary) -> None:
    """One polygon for each method. Many methods get a panel each. The band at the centre is the noise floor."""
    rows, values = summary.recovering, spokes(summary)
    together = len(rows) <= MOST_IN_A_PANEL
    columns = 1 if together else 4
    lines = 1 if together else math.ceil(len(rows) / columns)
    figure = new_figure(6.6, 6.6) if together else new_figure(12, 2.6 * lines)
    panels = [
        figure.add_subplot(lines, columns, 1 + i, projection="polar") for i in range(1 if together else len(rows))
    ]
    ring = [2 * math.pi * i / len(values) for i in range(len(values) + 1)]
    for axes in panels:
        _web(axes, ring, list(values), small=not together)
        floor = floor_spokes(summary)
        if floor:
            closed = [*floor, floor[0]]
            axes.fill(ring, closed, facecolor=BAND, edgecolor=FAINT, linestyle=":", label="noise floor", zorder=0)
    for i, row in enumerate(rows):
        axes = panels[0 if together else i]
        polygon = [column[i] for column in values.values()]
        closed = [*polygon, polygon[0]]
        name = short_name(summary, row)
        axes.plot(ring, closed, color=colour(i), linewidth=1.8, label=name, marker=marker(i), markersize=4.5)
        axes.fill(ring, closed, color=colour(i), alpha=0.06 if together else 0.2)
        if not together:
            axes.set_title(name, color=INK, fontsize=10, fontweight="bold", pad=14)
    if together:
        legend_below(figure, panels[0])
    else:
        figure.tight_layout()
    figure.savefig(path)


def spokes(summary: Summary) -> dict[str, list[float]]:
    """For each axis the value of every method, from 0 at the centre to 1 at the rim.

    Distances: 0 is Retrain, 1 is Original and everything beyond it. Test deficit: the share of Retrain's test score that
    is missing. Costs: on a logarithmic scale, 0 is the lowest cost in this figure, 1 is retraining.
    """
    rows, original, retrained = summary.recovering, summary.row("original"), summary.row("retrain")
    if len(rows) < 2 or original is None or retrained is None:
        raise UsageError("a radar figure compares at least two methods with Original and Retrain")
    found = {f"Δ {label}": [_remoteness(row, original, name) for row in rows] for name, label in compared(summary)}
    goal = retrained.values["test"].mean
    found["test deficit"] = [max(0.0, 1 - row.values["test"].mean / goal) if goal else 1.0 for row in rows]
    found["communication"] = _expense([row.nbytes for row in rows], retrained.nbytes)
    found["computation"] = _expense([row.samples for row in rows], retrained.samples)
    return found


def floor_spokes(summary: Summary) -> list[float]:
    """The noise floor on the same axes; it has no deficit and no cost. Empty without a floor."""
    original = summary.row("original")
    if summary.floor is None or original is None:
        return []
    return [*(_remoteness(summary.floor, original, name) for name, _ in compared(summary)), 0.0, 0.0, 0.0]


def _web(axes: Any, ring: Sequence[float], names: Sequence[str], *, small: bool) -> None:
    """The spokes and rings."""
    axes.set_xticks(ring[:-1], names)
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "", "", ""])
    axes.tick_params(axis="x", labelcolor=INK, pad=0 if small else 4, labelsize=7.5 if small else 10)
    for label, angle in zip(axes.get_xticklabels(), ring[:-1], strict=True):
        # Beside the circle a label ends or begins at the rim, so that it covers no line.
        side = math.cos(angle)
        label.set_horizontalalignment("center" if abs(side) < 0.3 else "left" if side > 0 else "right")
    axes.grid(color=GRID)
    axes.spines["polar"].set_color(FAINT)


def _remoteness(row: SummaryRow, original: SummaryRow, metric: str) -> float:
    """0 for the retrained model, 1 for the distance of the original and everything beyond it."""
    worst = original.deltas[metric].mean
    return min(1.0, row.deltas[metric].mean / worst) if worst > 0 else 0.0


def _expense(costs: Sequence[float], reference: float) -> list[float]:
    """0 for the lowest cost, 1 for the cost of the reference."""
    least = min((c for c in costs if c > 0), default=reference)
    most = math.log(reference / least) if 0 < least < reference else 0.0
    return [0.0 if c <= 0 else min(1.0, 1 - math.log(reference / c) / most) if most else 1.0 for c in costs]
