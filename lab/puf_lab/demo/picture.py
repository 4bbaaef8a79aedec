"""The demo's figure: test and forget accuracy before, during and after forgetting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from puf_common.errors import UsageError
from puf_lab.reporting.style import BLUE, INK, ORANGE, new_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"test": BLUE, "forget": ORANGE}
_MARKERS = {"test": "o", "forget": "s"}
_NAMES = {"test": "test data", "forget": "forgotten data"}
_DOTS = {"test": (0.0, (1.2, 2.6)), "forget": (1.9, (1.2, 2.6))}  # equal levels interleave, so both are visible
_MARKED = 40  # largest number of markers on a line


@dataclass(frozen=True, slots=True)
class Curve:
    """Accuracies in per cent after the given rounds."""

    rounds: Sequence[int]
    test: Sequence[float]
    forget: Sequence[float]

    def __post_init__(self) -> None:
        if not len(self.rounds) == len(self.test) == len(self.forget) > 0:
            raise UsageError("a curve needs one test and one forget accuracy for each of its rounds")


def accuracy_curve(
    path: Path,
    *,
    curve: Curve,
    forgotten_at: int,
    retrained_test: float | None = None,
    retrained_forget: float | None = None,
    natural: Curve | None = None,
    title: str = "One client is forgotten",
    subtitle: str = "",
) -> None:
    """Draws test and forget accuracy over the rounds. The file's suffix names the format (png, svg, pdf).

    `forgotten_at` is the unlearning round; the curve's value there is the model right after unlearning. `natural` is
    the same federation without unlearning, drawn dashed. Dotted lines are the accuracies of the retrained model, which
    the solid lines should meet.
    """
    from matplotlib.ticker import PercentFormatter

    references = {"test": retrained_test, "forget": retrained_forget}
    figure = new_figure(9, 5.4)
    axes = figure.add_subplot()
    head = 0.05 if subtitle else 0.0
    figure.subplots_adjust(left=0.085, right=0.975, bottom=0.11, top=0.78 - head)

    _draw_lines(axes, curve, references, natural)
    _draw_moment(axes, curve, forgotten_at, natural)
    style_axes(axes, x="round", y="accuracy", whole=True, grid="y")
    axes.yaxis.set_major_formatter(PercentFormatter(100, decimals=0, symbol=" %"))
    # Title and legend are above the axes, so that no line is drawn behind them.
    figure.text(0.02, 0.955, title, fontsize=15, fontweight="bold", color=INK, va="center")
    figure.text(0.02, 0.9, subtitle, fontsize=10, color=INK, va="center")
    figure.legend(
        loc="upper left", bbox_to_anchor=(0.012, 0.925 - head), ncols=3, frameon=False, fontsize=9.5, labelcolor=INK,
        handlelength=3.2, columnspacing=2.4,
    )  # fmt: skip
    figure.savefig(path)


def _draw_lines(axes: Axes, curve: Curve, references: dict[str, float | None], dashed: Curve | None) -> None:
    # The legend fills column by column: one column per model, one row per kind of data.
    for data, colour in _COLOURS.items():
        axes.plot(
            curve.rounds, getattr(curve, data), color=colour, linewidth=2.2, marker=_MARKERS[data], markersize=5.5,
            markeredgecolor="white", markeredgewidth=0.6,
            markevery=max(1, len(curve.rounds) // _MARKED), label=f"{_NAMES[data]}, this run", zorder=4,
        )  # fmt: skip
    for data, level in references.items():
        if level is not None:
            axes.axhline(
                level, color=_COLOURS[data], linewidth=1.8, linestyle=_DOTS[data], zorder=2,
                label=f"{_NAMES[data]}, retrained model ({level:.1f} %)",
            )  # fmt: skip
    values = [*curve.test, *curve.forget, *(level for level in references.values() if level is not None)]
    if dashed is not None:
        values += [*dashed.test, *dashed.forget]
        for data, colour in _COLOURS.items():
            axes.plot(
                dashed.rounds, getattr(dashed, data), color=colour, linewidth=1.6, linestyle=(0, (5, 2)), alpha=0.8,
                label=f"{_NAMES[data]}, no unlearning", zorder=3,
            )  # fmt: skip
    values = [value for value in values if math.isfinite(value)] or [0.0, 100.0]
    room = max(1.0, 0.05 * (max(values) - min(values)))
    axes.set_ylim(min(values) - room, max(values) + room)


def _draw_moment(axes: Axes, curve: Curve, forgotten_at: int, dashed: Curve | None) -> None:
    first = min(*curve.rounds, forgotten_at)
    last = max(*curve.rounds, *(dashed.rounds if dashed is not None else ()), forgotten_at)
    margin = max(0.5, 0.012 * (last - first))
    axes.set_xlim(first - margin, last + margin)
    axes.axvspan(forgotten_at, last + margin, color="#F3F3F3", zorder=0, linewidth=0)
    axes.axvline(forgotten_at, color=INK, linewidth=1.2, zorder=1)
    near_end = forgotten_at - first > 0.7 * (last - first)
    axes.annotate(
        f"forgotten in round {forgotten_at}", (forgotten_at, 1), xycoords=("data", "axes fraction"), xytext=(0, 5),
        textcoords="offset points", ha="right" if near_end else "left", va="bottom", color=INK, fontsize=10,
    )  # fmt: skip
