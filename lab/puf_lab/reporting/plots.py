"""Figures of an experiment: who holds what, how methods recover, the tuning scatter, the radar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from puf_common.errors import UsageError
from puf_lab.reporting.results import Run
from puf_lab.reporting.summary import Summary, compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["label_distribution", "radar", "recovery_curves", "scatter"]

# Okabe and Ito: told apart with every kind of colour vision; markers tell them apart in print.
_PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#7F7F7F",
    "#000000",
    "#8B4513",
    "#6A3D9A",
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_INK, _FAINT = "#333333", "#8C8C8C"


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, facecolor="white")


def _dress(axes: Axes, title: str = "") -> None:
    axes.set_title(title, color=_INK, fontsize=11, loc="left")
    axes.grid(color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(color=_FAINT, labelcolor=_INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_FAINT)


def _whole() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True)


def label_distribution(path: Path, counts: Sequence[Sequence[int]], title: str) -> None:
    """Samples per class and client: the area of a dot is a number of samples. Above it what each client has in all."""
    table = np.asarray(counts, np.float64)
    if table.ndim != 2 or not table.size:
        raise UsageError("a label distribution needs a row of counts per client")
    clients, classes = table.shape
    figure = _figure(max(6.0, 0.7 * clients + 2), max(4.0, min(9.0, 0.16 * classes + 2.2)))
    top, axes = figure.subplots(2, 1, height_ratios=[1, 4], sharex=True)
    top.bar(range(clients), table.sum(1), color=_PALETTE[0], width=0.6)
    for client, size in enumerate(table.sum(1)):
        top.annotate(f"{size:.0f}", (client, size), ha="center", va="bottom", fontsize=8, color=_INK)
    top.set_ylim(0, 1.25 * table.sum(1).max())
    top.set_ylabel("samples", color=_INK)
    _dress(top, title)
    who, what = np.nonzero(table)
    axes.scatter(who, what, s=90 * table[who, what] / table.max(), color=_PALETTE[1], alpha=0.85, linewidths=0)
    axes.set_ylim(-1, classes)
    axes.set_xticks(range(clients))
    axes.set_xlabel("client", color=_INK)
    axes.set_ylabel("class", color=_INK)
    _dress(axes)
    figure.tight_layout()
    figure.savefig(path)


def _mean_curve(runs: Sequence[Run], which: int) -> tuple[list[int], list[float]]:
    """Mean over the runs, for as many rounds as all of them have."""
    length = min(len(run.curve) for run in runs)
    points = np.array([[point[which] for point in run.curve[:length]] for run in runs])
    return [point[0] for point in runs[0].curve[:length]], points.mean(0).tolist()


def recovery_curves(path: Path, summary: Summary) -> None:
    """Test and forget accuracy after unlearning, one line per method; dotted is the retrained model's, dashed the original's."""
    lines = [line for line in summary.lines if line.recovery is not None]
    if not lines:
        raise UsageError("there is no method that recovers among these runs")
    unit = "Dice" if summary.results.experiment["task"] == "segmentation" else "accuracy"
    figure = _figure(10.5, 4.6)
    left, right = figure.subplots(1, 2)
    for axes, which, name in ((left, 1, "test"), (right, 2, "forget")):
        for i, line in enumerate(lines):
            rounds, values = _mean_curve(summary.results.of(line.method), which)
            axes.plot(
                rounds, values, color=_PALETTE[i % len(_PALETTE)], marker=_MARKERS[i % len(_MARKERS)], linewidth=1.8,
                markersize=4.5, markevery=max(1, len(rounds) // 12), label=line.label,
            )  # fmt: skip
        for method, style in (("retrain", ":"), ("original", "--")):
            reference = summary.line(method)
            if reference is not None:
                label = f"{reference.label} (level)"
                axes.axhline(reference.values[name].mean, color=_INK, linestyle=style, linewidth=1.4, label=label)
        _dress(axes, f"{name} {unit}, %")
        axes.set_xlabel("rounds after unlearning", color=_INK)
        axes.xaxis.set_major_locator(_whole())
    _legend_below(figure, left)
    figure.savefig(path)


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    rows = math.ceil(len(labels) / 4)
    room = 0.02 + 0.055 * rows
    figure.tight_layout(rect=(0, room, 1, 1))
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, fontsize=9, labelcolor=_INK)


def scatter(path: Path, summary: Summary) -> None:
    """The tuning figure: recovery rounds against the distance in forget accuracy. The closer to the origin the better."""
    lines = [line for line in summary.lines if line.recovery is not None]
    if not lines:
        raise UsageError("there is no method that recovers among these runs")
    figure = _figure(7.6, 5.4)
    axes = figure.subplots()
    families = list(dict.fromkeys(line.method.split()[0] for line in lines))
    # Neighbours are told above and below their points in turn.
    for rank, line in enumerate(sorted(lines, key=lambda line: line.deltas["forget"].mean)):
        i = families.index(line.method.split()[0])
        assert line.recovery is not None
        x, y = line.recovery.mean, line.deltas["forget"].mean
        whole = line.recovery.recovered == line.recovery.targets
        axes.errorbar(
            x, y, xerr=line.recovery.sd or 0, yerr=line.deltas["forget"].sd or 0, fmt=_MARKERS[i % len(_MARKERS)],
            color=_PALETTE[i % len(_PALETTE)], markerfacecolor=_PALETTE[i % len(_PALETTE)] if whole else "white",
            markersize=8, elinewidth=0.8, capsize=2, alpha=0.9,
        )  # fmt: skip
        above = rank % 2 == 1
        axes.annotate(
            line.label, (x, y), xytext=(7, 4 if above else -4), textcoords="offset points", fontsize=8.5,
            va="bottom" if above else "top", color=_PALETTE[i % len(_PALETTE)], fontweight="bold",
        )  # fmt: skip
    furthest = max(line.recovery.mean for line in lines if line.recovery)
    axes.set_xlim(0, max(2.0, 1.25 * furthest))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(_whole())
    axes.set_xlabel(
        "recovery rounds to the retrained model's test score (hollow: some runs did not get there)", color=_INK
    )
    axes.set_ylabel("Δ forget, points from the retrained model", color=_INK)
    _dress(axes, "closer to the origin is better")
    figure.tight_layout()
    figure.savefig(path)


def radar(path: Path, summary: Summary) -> None:
    """Every axis from the centre (no better than the original, or than retraining) to the rim (like the retrained model, or
    the cheapest shown here, on a logarithmic scale)."""
    lines = [line for line in summary.lines if line.recovery is not None]
    original, retrained = summary.line("original"), summary.line("retrain")
    if len(lines) < 2 or original is None or retrained is None:
        raise UsageError("a radar figure compares at least two methods with Original and Retrain")
    spokes = {
        f"Δ {label}": [_nearness(line.deltas[name].mean, original.deltas[name].mean) for line in lines]
        for name, label in compared(summary)
    }
    goal = retrained.values["test"].mean
    spokes["test"] = [min(1.0, line.values["test"].mean / goal) if goal else 0.0 for line in lines]
    spokes["communication"] = _savings([line.nbytes for line in lines], retrained.nbytes)
    spokes["computation"] = _savings([line.samples for line in lines], retrained.samples)
    angles = [2 * math.pi * i / len(spokes) for i in range(len(spokes))]
    figure = _figure(6.6, 6.6)
    axes: Any = figure.add_subplot(projection="polar")
    for i, line in enumerate(lines):
        values = [column[i] for column in spokes.values()]
        colour = _PALETTE[i % len(_PALETTE)]
        axes.plot(
            [*angles, angles[0]], [*values, values[0]], color=colour, linewidth=1.8, label=line.label,
            marker=_MARKERS[i % len(_MARKERS)], markersize=4.5,
        )  # fmt: skip
        axes.fill([*angles, angles[0]], [*values, values[0]], color=colour, alpha=0.06)
    axes.set_xticks(angles, list(spokes))
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0.25, 0.5, 0.75, 1.0], ["", "", "", ""])
    axes.tick_params(axis="x", labelcolor=_INK, pad=20)
    axes.grid(color="#DDDDDD")
    axes.spines["polar"].set_color(_FAINT)
    _legend_below(figure, axes)
    figure.savefig(path)


def _nearness(delta: float, worst: float) -> float:
    return max(0.0, 1 - delta / worst) if worst > 0 else 1.0


def _savings(costs: Sequence[float], reference: float) -> list[float]:
    """1 for the cheapest, 0 for what costs as much as the reference."""
    least = min((c for c in costs if c > 0), default=reference)
    best = math.log(reference / least) if 0 < least < reference else 0.0
    return [1.0 if c <= 0 else max(0.0, math.log(reference / c) / best) if best else 0.0 for c in costs]
