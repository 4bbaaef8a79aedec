"""The bench's figure: a round compared with the limit and the peers, and the growth of time and memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puf_lab.reporting.style import BLUE, FAINT, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(result: dict[str, Any], path: Path) -> None:
    """Draws the parts of the result that were measured."""
    details = result["details"]
    growth = details.get("growth", {})
    panels: list[Callable[[Axes], None]] = [lambda axes: _bars(axes, details)]
    if "clients" in growth:
        for x, name, label in ((1.0, "clients", "clients"), (1e6, "parameters", "million parameters")):
            panels.append(partial(_growth, growth=growth, name=name, unit=x, label=label))
    if "rounds" in growth:
        panels.append(lambda axes: _rounds(axes, growth))
    figure = new_figure(3.8 + 2.4 * len(panels), 3.4)
    figure.set_layout_engine("constrained")
    ratios = [1.7, *[1.0] * (len(panels) - 1)]
    for axes, panel in zip(figure.subplots(1, len(panels), width_ratios=ratios, squeeze=False)[0], panels, strict=True):
        panel(axes)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _bars(axes: Axes, details: dict[str, Any]) -> None:
    seconds = details.get("round_seconds", {})
    found = {
        "raw TCP": seconds.get("raw_tcp"),
        "PUF": seconds.get("puf"),
        "PUF over mTLS": seconds.get("puf_mtls"),
        "FLARE simulator": details.get("flare", {}).get("seconds"),
        "Flower legacy": details.get("flower_legacy", {}).get("seconds"),
        "Flower deployment": details.get("flower_deployment", {}).get("seconds"),
    }
    shown = {name: statistics.median(times) for name, times in found.items() if times}
    if not shown:
        axes.set_axis_off()
        return
    colours = [BLUE if name.startswith("PUF") else FAINT for name in shown]
    bars = axes.barh(list(shown), list(shown.values()), color=colours)
    axes.bar_label(bars, [f" {value:.3g} s" for value in shown.values()])
    axes.set_xscale("log")
    axes.set_xlim(right=max(shown.values()) * 4)
    axes.invert_yaxis()
    axes.set_xlabel("seconds: 10 clients fetch and send 11.2 M parameters")


def _rounds(axes: Axes, growth: dict[str, Any]) -> None:
    axes.plot(growth["rounds"], growth["rounds_memory_mb"], color=ORANGE, marker="s", markersize=3)
    axes.set_ylim(0, 1.25 * max(growth["rounds_memory_mb"]))
    axes.set_xlabel("rounds")
    axes.set_ylabel("server memory, MB", color=ORANGE)


def _growth(axes: Axes, *, growth: dict[str, Any], name: str, unit: float, label: str) -> None:
    x = [value / unit for value in growth[name]]
    seconds, memory = growth[f"{name}_seconds"], growth[f"{name}_memory_mb"]
    axes.plot(x, seconds, color=BLUE, marker="o", markersize=4)
    axes.set_xlabel(label)
    axes.set_ylabel("seconds a round", color=BLUE)
    if unit > 1:
        # In this scale a straight line means proportional growth.
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * max(seconds))
    other = axes.twinx()
    other.plot(x, memory, color=ORANGE, marker="s", markersize=4)
    other.set_ylabel("server memory, MB", color=ORANGE)
    other.set_ylim(0, 1.25 * max(memory))
    other.spines["top"].set_visible(False)
