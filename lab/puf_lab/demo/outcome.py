"""What forgetting did, as a table for terminals and for Markdown, and as one honest sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "CLOSE_SHARE",
    "COLUMNS",
    "GAP_ERRORS",
    "MIN_GAP",
    "PARTLY_SHARE",
    "TEST_LOSS",
    "Measured",
    "Outcome",
    "Stage",
    "Verdict",
    "markdown",
    "rich_table",
    "verdict",
]

# Below this many points between the original and the retrained model on the forget data, forgetting cannot be seen.
MIN_GAP = 5.0
# ... and below this many of its standard errors, on the samples there are, it cannot be told from chance.
GAP_ERRORS = 2.0
# "Like the retrained model": no further from it than this share of the gap.
CLOSE_SHARE = 0.35
# "Part of the way": no further than this share; beyond it, "not".
PARTLY_SHARE = 0.65
# A verdict mentions test accuracy that is more than this many points below the retrained model's.
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
_MISSING = "–"


@dataclass(frozen=True, slots=True)
class Measured:
    """One model: accuracies and membership attacks in per cent, None where it was not measured."""

    test: float | None = None
    forget: float | None = None
    song: float | None = None
    yeom: float | None = None


class Outcome(Enum):
    """What a verdict says, for programs."""

    LIKE_RETRAINED = "like retrained"
    PARTLY = "partly"
    NOT = "not"
    TOO_MUCH = "too much"
    NOTHING_TO_FORGET = "nothing to forget"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`share` is the distance to the retrained model as a share of the gap: 0 is equal, 1 is not forgotten at all."""

    outcome: Outcome
    sentence: str
    share: float | None = None

    def __str__(self) -> str:
        return self.sentence


def rich_table(rows: Mapping[Stage, Measured], *, title: str | None = None) -> Table:
    """For terminals. Rows stand in the order of the story; the two that should agree are the bright ones."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("model")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for stage, cells in _cells(rows):
        table.add_row(_LABELS[stage], *cells, style="bold" if stage in ("recovered", "retrained") else None)
    return table


def markdown(rows: Mapping[Stage, Measured]) -> str:
    """The same for files and issues, aligned so that it reads well unrendered."""
    head = ["model", *(f"{column} %" for column in COLUMNS)]
    lines = [head, *([_LABELS[stage], *cells] for stage, cells in _cells(rows))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = [
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        for line in lines
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in [padded[0], rule, *padded[1:]]) + "\n"


def verdict(rows: Mapping[Stage, Measured], *, samples: int | None = None) -> Verdict:
    """Whether the recovered model treats the forgotten data as the retrained one does, relative to the gap.

    The gap is what the original model knew about the forgotten data beyond what a model that never saw them knows.
    `samples` is how many forgotten samples were measured; with it, a gap within chance counts as none.
    """
    measured = {stage: rows.get(stage, Measured()) for stage in _JUDGED}
    missing = [_LABELS[stage] for stage, row in measured.items() if row.forget is None]
    original, recovered, retrained = (row.forget for row in measured.values())
    if original is None or recovered is None or retrained is None:
        return Verdict(Outcome.NOT_MEASURED, f"No verdict: forget accuracy was not measured for {', '.join(missing)}.")

    gap, distance = original - retrained, recovered - retrained
    needed = max(MIN_GAP, GAP_ERRORS * math.hypot(_error(original, samples), _error(retrained, samples)))
    if not gap >= needed:
        return Verdict(
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
    return Verdict(outcome, sentence, share)


def _judged(share: float, *, below: bool) -> tuple[Outcome, str, str]:
    if share <= CLOSE_SHARE:
        return Outcome.LIKE_RETRAINED, "Forgotten", "it behaves like a model that never saw them"
    if below:
        return Outcome.TOO_MUCH, "Forgotten too much", "it does worse on them than a model that never saw them"
    if share <= PARTLY_SHARE:
        return Outcome.PARTLY, "Partly forgotten", "it still does better on them than a model that never saw them"
    return Outcome.NOT, "Not forgotten", "it does not behave like a model that never saw them"


def _error(accuracy: float, samples: int | None) -> float:
    """Standard error of an accuracy in per cent on so many samples; 0 where their number is not known."""
    # One more hit and one more miss, so that 100 % on few samples is not taken for certain.
    share = ((accuracy / 100) * samples + 1) / (samples + 2) if samples else 0.0
    return 100 * math.sqrt(share * (1 - share) / samples) if samples else 0.0


def _cells(rows: Mapping[Stage, Measured]) -> list[tuple[Stage, list[str]]]:
    return [
        (stage, [_MISSING if value is None else f"{value:.1f}" for value in astuple(rows[stage])])
        for stage in _LABELS
        if stage in rows
    ]
