"""Colours, markers and axes of all figures of the lab."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito: distinguishable with every kind of colour vision. Markers distinguish the lines in print.
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000", "#8B4513", "#6A3D9A",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
BLUE, ORANGE = PALETTE[:2]
INK, FAINT, GRID, BAND = "#333333", "#8C8C8C", "#DDDDDD", "#E4E4E4"
# Lines and polygons of more methods than these hide each other: then each method gets a panel.
MOST_IN_A_PANEL = 6
# Inches of a column and a line of a legend.
_LEGEND_COLUMN, _LEGEND_LINE = 2.5, 0.21


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def marker(index: int) -> str:
    """After the last colour the same colours come with the next markers, so that no two lines look the same."""
    return MARKERS[(index + 3 * (index // len(PALETTE))) % len(MARKERS)]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure with this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, facecolor="white")


def style_axes(
    axes: Axes, title: str = "", *, x: str = "", y: str = "", whole: bool = False, grid: str = "both"
) -> None:
    """Sets title, labels, grid and spines. `whole` restricts the ticks of the x axis to integers."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, color=INK, fontsize=11, loc="left")
    if x:
        axes.set_xlabel(x, color=INK)
    if y:
        axes.set_ylabel(y, color=INK)
    if whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis=grid, color=GRID, linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(color=FAINT, labelcolor=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)


def legend_below(figure: Figure, axes: Axes) -> None:
    """Puts the legend of these axes below the figure, in as many columns as its width holds."""
    handles, labels = axes.get_legend_handles_labels()
    width, height = figure.get_size_inches()
    columns = max(1, int(width // _LEGEND_COLUMN))
    room = (0.15 + _LEGEND_LINE * math.ceil(len(labels) / columns)) / height
    figure.tight_layout(rect=(0, room, 1, 1))
    figure.legend(handles, labels, loc="lower center", ncols=columns, frameon=False, fontsize=9, labelcolor=INK)
