"""The table of `puf-lab quality`: one line per setting and method, with goals met or missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from puf_lab.reporting.sheet import MISSING, Sheet


def quality_sheet(rows: Sequence[Mapping[str, Any]], skipped: Sequence[str] = (), *, short: bool = False) -> Sheet:
    """The table of these rows, which are those of quality.json. A short one has the names of the settings, no titles."""
    later = rows[0]["later"] if rows else 0
    head = ["setting", "method", "runs", f"Δ forget, +{later}", "floor", f"Δ RMIA, +{later}", "floor"]
    head += ["dip (worst)", "recovery rounds", "MB", "local epochs", "goals"]
    notes = [
        "Δ: mean distance to the model retrained without the same target, in points: at completion, and "
        f"{later} retained-only rounds later. The service's own stop rule decides completion.",
        "Floor: the same distance between Retrain and Retrain with another training seed.",
        "Dip: lowest test accuracy from the request to completion, minus that before: mean (worst run). Recovery rounds "
        "(k of n): the service called only k of n runs recovered. MB and local epochs: tensor bytes in both directions "
        "and epochs of all clients together, for one request.",
        "‡ Test accuracy at completion is below Retrain's by more than noise.",
        *skipped,
    ]
    return Sheet("quality", "Quality of forgetting", head, [_cells(row, short) for row in rows], notes)


def _cells(row: Mapping[str, Any], short: bool) -> list[str]:
    recovered = "" if row["recovered"] == row["runs"] else f" ({row['recovered']} of {row['runs']})"
    return [
        row["setting"].removeprefix("quality-") if short else row["title"].removeprefix("Quality: "),
        row["label"] + ("" if row["ranked"] else " ‡"),
        str(row["runs"]),
        f"{_mean(row['forget'])}, {_mean(row['forget_later'])}",
        _mean(row["floor"]["forget"]),
        f"{_mean(row['rmia'])}, {_mean(row['rmia_later'])}",
        _mean(row["floor"]["rmia"]),
        f"{row['dip']['mean']:.1f} ({row['dip_worst']:.1f})",
        f"{row['recovery_rounds']:.1f}{recovered}",
        f"{row['bytes'] / 1e6:,.1f}",
        f"{row['epochs']:.0f}",
        _verdict(row["goals"]),
    ]


def _mean(interval: Mapping[str, float] | None) -> str:
    return MISSING if interval is None else f"{interval['mean']:.1f}"


def _verdict(goals: Sequence[Mapping[str, Any]]) -> str:
    missed = [goal for goal in goals if not goal["met"]]
    if not missed:
        return "met"
    return "missed: " + ", ".join(goal["name"] for goal in missed)
