"""Scores of each model of the demo as a table, and the conclusion as one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal

from puf_lab.reporting.sheet import MISSING, markdown_table

if TYPE_CHECKING:
    from rich.table import Table

# Smallest gap in points between the original and the retrained model on the forget data that can show forgetting.
MIN_GAP = 5.0
# The gap must also exceed this many of its standard errors; otherwise it is within chance.
GAP_ERRORS = 2.0
# "Like the retrained model": at most this share of the gap away from it.
CLOSE_SHARE = 0.35
# "Partly forgotten": at most this share; above it, "not forgotten".
PARTLY_SHARE = 0.65
# The conclusion mentions a test accuracy that is more than this many points below the retrained model's.
TEST_LOSS = 3.0

Stage = Literal["original", "unlearned", "recovered", "retrained", "natural"]
_LABELS: Mapping[Stage, str] = {
    "original": "original",
    "unlearned": "right after unlearning",
    "recovered": "recovered",
    "retrained": "retrained without it",
    "natural": "no unlearning, trained on",
}
COLUMNS = ("test accuracy", "forget accuracy", "MIA Song", "MIA Yeom")
_JUDGED: tuple[Stage, ...] = ("original", "recovered", "retrained")


@dataclass(frozen=True, slots=True)
class StageScores:
    """Accuracies and membership attacks of one model in per cent. None means not measured."""

    test: float | None = None
    forget: float | None = None
    song: float | None = None
    yeom: float | None = None


class Outcome(Enum):
    """The conclusion for programs."""

    LIKE_RETRAINED = "like retrained"
    PARTLY = "partly"
    NOT = "not"
    TOO_MUCH = "too much"
    NOTHING_TO_FORGET = "nothing to forget"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """`share` is the distance to the retrained model as a share of the gap: 0 is equal, 1 is not forgotten at all."""

    outcome: Outcome
    sentence: str
    share: float | None = None


def rich_table(rows: Mapping[Stage, StageScores], *, title: str | None = None) -> Table:
    """The table for terminals, in the order of events. The two rows that should agree are bold."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("model")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for stage, cells in _cells(rows):
        table.add_row(_LABELS[stage], *cells, style="bold" if stage in ("recovered", "retrained") else None)
    return table


def markdown(rows: Mapping[Stage, StageScores]) -> str:
    """The same table as Markdown."""
    head = ["model", *(f"{column} %" for column in COLUMNS)]
    return markdown_table(head, [[_LABELS[stage], *cells] for stage, cells in _cells(rows)])


def conclude(rows: Mapping[Stage, StageScores], *, samples: int | None = None) -> Conclusion:
    """Whether the recovered model treats the forgotten data like the retrained model, relative to the gap.

    The gap is the original model's forget accuracy minus that of a model that never saw the data. `samples` is the
    number of forgotten samples. If it is given, a gap within chance counts as none.
    """
    measured = {stage: rows.get(stage, StageScores()) for stage in _JUDGED}
    missing = [_LABELS[stage] for stage, row in measured.items() if row.forget is None]
    original, recovered, retrained = (row.forget for row in measured.values())
    if original is None or recovered is None or retrained is None:
        return Conclusion(
            Outcome.NOT_MEASURED, f"No verdict: forget accuracy was not measured for {', '.join(missing)}."
        )

    gap, distance = original - retrained, recovered - retrained
    needed = max(MIN_GAP, GAP_ERRORS * math.hypot(_error(original, samples), _error(retrained, samples)))
    if not gap >= needed:
        return Conclusion(
            Outcome.NOTHING_TO_FORGET,
            f"Nothing to forget: on the forgotten data the original model ({original:.1f} %) and the retrained one "
            f"({retrained:.1f} %) are too alike (gap {gap:+.1f} points, at least {needed:.1f} needed) to show forgetting.",
        )
    share = abs(distance) / gap
    outcome, word, meaning = _judged(share, below=distance < 0)
    ours, theirs = measured["recovered"].test, measured["retrained"].test
    lost = theirs - ours if ours is not None and theirs is not None else 0.0
    turn = "but" if outcome is Outcome.LIKE_RETRAINED else "and"
    price = f", {turn} its test accuracy is {lost:.1f} points below the retrained model's" if lost > TEST_LOSS else ""
    sentence = (
        f"{word}: on the forgotten data the recovered model ({recovered:.1f} %) is {abs(distance):.1f} points from the "
        f"retrained one ({retrained:.1f} %), where the original was {gap:.1f} points away; {meaning}{price}."
    )
    return Conclusion(outcome, sentence, share)


def _judged(share: float, *, below: bool) -> tuple[Outcome, str, str]:
    if share <= CLOSE_SHARE:
        return Outcome.LIKE_RETRAINED, "Forgotten", "it behaves like a model that never saw them"
    if below:
        return Outcome.TOO_MUCH, "Forgotten too much", "it does worse on them than a model that never saw them"
    if share <= PARTLY_SHARE:
        return Outcome.PARTLY, "Partly forgotten", "it still does better on them than a model that never saw them"
    return Outcome.NOT, "Not forgotten", "it does not behave like a model that never saw them"


def _error(accuracy: float, samples: int | None) -> float:
    """Standard error of an accuracy in per cent on this many samples; 0 if their number is unknown."""
    # One more hit and one more miss, so that the error of 100 % on few samples is not zero.
    share = ((accuracy / 100) * samples + 1) / (samples + 2) if samples else 0.0
    return 100 * math.sqrt(share * (1 - share) / samples) if samples else 0.0


def _cells(rows: Mapping[Stage, StageScores]) -> list[tuple[Stage, list[str]]]:
    return [
        (stage, [MISSING if value is None else f"{value:.1f}" for value in astuple(rows[stage])])
        for stage in _LABELS
        if stage in rows
    ]
