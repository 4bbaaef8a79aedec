"""Scores of each model of the demo as a table, and the verdict in the words of a receipt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Literal

from puf_common.receipts.evidence import Verdict
from puf_lab.reporting.sheet import MISSING, markdown_table

if TYPE_CHECKING:
    from rich.table import Table

# Below this gap in points between the original and the retrained model there is nothing to forget.
MIN_GAP = 5.0
# A distance within this many standard errors may be chance. Four figures are compared: 98.75 % for each is 95 % for all.
ERRORS = 2.4977
# The verdict mentions a test accuracy that is more than this many points below the retrained model's.
TEST_LOSS = 3.0

Stage = Literal["original", "unlearned", "recovered", "retrained", "retrained again", "natural"]
_LABELS: Mapping[Stage, str] = {
    "original": "original",
    "unlearned": "right after unlearning",
    "recovered": "recovered",
    "retrained": "retrained without it",
    "retrained again": "retrained, another seed",
    "natural": "no unlearning, trained on",
}
COLUMNS = ("test accuracy", "forget accuracy", "MIA Song", "MIA Yeom", "above unseen")
# Figures about the forgotten data, by the fields of `StageScores`.
_FIGURES: Mapping[str, str] = dict(zip(("forget", "song", "yeom", "ranks"), COLUMNS[1:], strict=True))
_JUDGED: tuple[Stage, ...] = ("original", "recovered", "retrained", "retrained again")


@dataclass(frozen=True, slots=True)
class StageScores:
    """Figures of one model in per cent. None means not measured.

    `ranks` is the share of pairs in which the model is more confident about a forgotten sample than about a test image of
    the same class. 50 means like unseen data.
    """

    test: float | None = None
    forget: float | None = None
    song: float | None = None
    yeom: float | None = None
    ranks: float | None = None


@dataclass(frozen=True, slots=True)
class Distance:
    """One figure in points: the recovered and the original model against the retrained one, and what may be chance."""

    name: str
    recovered: float
    gap: float
    # Of a second retrained model.
    noise: float
    chance: float

    @property
    def tolerated(self) -> float:
        return max(abs(self.noise), self.chance)

    @property
    def beyond(self) -> bool:
        return not abs(self.recovered) <= self.tolerated


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The verdict; None if a figure is missing."""

    verdict: Verdict | None
    sentence: str


def rich_table(rows: Mapping[Stage, StageScores], *, title: str | None = None) -> Table:
    """The table for terminals, in the order of events. The two rows that should agree are bold."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("model")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for stage, cells in _cells(rows):
        table.add_row(_LABELS[stage], *cells, style="bold" if stage in ("recovered", "retrained") else None)
    table.add_section()
    for label, cells in _differences(rows):
        table.add_row(label, *cells)
    return table


def markdown(rows: Mapping[Stage, StageScores]) -> str:
    """The same table as Markdown."""
    head = ["model", *(f"{column} %" for column in COLUMNS)]
    body = [[_LABELS[stage], *cells] for stage, cells in _cells(rows)]
    return markdown_table(head, body + [[label, *cells] for label, cells in _differences(rows)])


def conclude(rows: Mapping[Stage, StageScores], *, samples: int, unseen: int) -> Conclusion:
    """Whether the recovered model treats the forgotten data like the retrained model, by every figure of the table.

    A distance is tolerated if a second retrained model is as far away, or if it may be chance with this number of samples.
    """
    missing = [_LABELS[stage] for stage in _JUDGED if None in astuple(rows.get(stage, StageScores()))]
    if missing:
        return Conclusion(None, f"Figures are missing for: {', '.join(missing)}.")
    found = distances(rows, samples=samples, unseen=unseen)
    known = [d for d in found if abs(d.gap) > max(MIN_GAP, d.tolerated)]
    beyond = [d for d in found if d.beyond]
    if beyond:
        verdict = Verdict.STILL_KNOWN
        reason = f"Further from the retrained model than chance and another seed explain, in points: {_listed(beyond)}"
    elif not known and all(abs(d.gap) <= MIN_GAP for d in found):
        verdict = Verdict.NOTHING_CHANGED
        reason = "The original model already treats the data like a model that never saw it"
    elif not known:
        verdict, reason = Verdict.TOO_FEW, f"{samples} samples do not tell the original from the retrained model"
    else:
        verdict = Verdict.FORGOTTEN
        reason = f"As close to the retrained model as chance and another seed allow, in points: {_listed(found)}"
    return Conclusion(verdict, f"{reason}.{_price(rows)}")


def distances(rows: Mapping[Stage, StageScores], *, samples: int, unseen: int) -> list[Distance]:
    """The figures about the forgotten data, for rows in which all are measured."""
    original, recovered, retrained, again = (rows[stage] for stage in _JUDGED)
    found = []
    for field, name in _FIGURES.items():
        reference = getattr(retrained, field)
        error = _rank_error(samples, unseen) if field == "ranks" else _share_error(reference, samples)
        ours, gap, noise = (getattr(row, field) - reference for row in (recovered, original, again))
        found.append(Distance(name, ours, gap, noise, ERRORS * error))
    return found


def _listed(found: list[Distance]) -> str:
    return ", ".join(f"{d.name} {d.recovered:+.1f} (original {d.gap:+.1f}, other seed {d.noise:+.1f})" for d in found)


def _price(rows: Mapping[Stage, StageScores]) -> str:
    ours, theirs = rows["recovered"].test, rows["retrained"].test
    lost = theirs - ours if ours is not None and theirs is not None else 0.0
    return f" Its test accuracy is {lost:.1f} points below the retrained model's." if lost > TEST_LOSS else ""


def _share_error(share: float, samples: int) -> float:
    """Standard error in points of a share in per cent.

    The models are measured on the same samples. With a correlation of one half the error of a difference is the same.
    """
    # One more hit and one more miss, so that the error of 100 % on few samples is not zero.
    p = ((share / 100) * samples + 1) / (samples + 2)
    return 100 * math.sqrt(p * (1 - p) / samples)


def _rank_error(samples: int, unseen: int) -> float:
    """Standard error in points of the ranks of samples that are like unseen ones."""
    return 100 * math.sqrt((samples + unseen + 1) / (12 * samples * unseen))


def _cells(rows: Mapping[Stage, StageScores]) -> list[tuple[Stage, list[str]]]:
    return [
        (stage, [MISSING if value is None else f"{value:.1f}" for value in astuple(rows[stage])])
        for stage in _LABELS
        if stage in rows
    ]


def _differences(rows: Mapping[Stage, StageScores]) -> list[tuple[str, list[str]]]:
    """How far the recovered and the second retrained model are from the retrained one, in points."""
    reference = astuple(rows.get("retrained", StageScores()))
    compared: dict[Stage, str] = {"recovered": "recovered − retrained", "retrained again": "another seed − retrained"}
    return [
        (label, [_difference(a, b) for a, b in zip(astuple(rows[stage]), reference, strict=True)])
        for stage, label in compared.items()
        if stage in rows and "retrained" in rows
    ]


def _difference(a: float | None, b: float | None) -> str:
    return MISSING if a is None or b is None else f"{a - b:+.1f}"
