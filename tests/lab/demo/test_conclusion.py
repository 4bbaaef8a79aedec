from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from puf_lab.demo.conclusion import (
    CLOSE_SHARE,
    MIN_GAP,
    PARTLY_SHARE,
    TEST_LOSS,
    Outcome,
    Stage,
    StageScores,
    conclude,
    markdown,
    rich_table,
)

ROWS: dict[Stage, StageScores] = {
    "retrained": StageScores(78.3, 78.1, 50.0, 55.0),
    "original": StageScores(79.0, 98.8, 84.1, 90.0),
    "unlearned": StageScores(41.0, 28.0),
    "recovered": StageScores(78.6, 81.8, 52.0, None),
    "natural": StageScores(78.8, 98.6, 80.0, 88.0),
}


def rows(original: float | None, recovered: float | None, retrained: float | None) -> dict[Stage, StageScores]:
    return {
        "original": StageScores(forget=original),
        "recovered": StageScores(forget=recovered),
        "retrained": StageScores(forget=retrained),
    }


class TestTables:
    def test_markdown_is_aligned(self) -> None:
        assert markdown(ROWS) == (
            "| model                     | test accuracy % | forget accuracy % | MIA Song % | MIA Yeom % |\n"
            "| ------------------------- | --------------: | ----------------: | ---------: | ---------: |\n"
            "| original                  |            79.0 |              98.8 |       84.1 |       90.0 |\n"
            "| right after unlearning    |            41.0 |              28.0 |          – |          – |\n"
            "| recovered                 |            78.6 |              81.8 |       52.0 |          – |\n"
            "| retrained without it      |            78.3 |              78.1 |       50.0 |       55.0 |\n"
            "| no unlearning, trained on |            78.8 |              98.6 |       80.0 |       88.0 |\n"
        )

    def test_rows_are_in_the_order_of_events(self) -> None:
        screen = io.StringIO()
        Console(file=screen, width=100).print(rich_table(ROWS, title="site-3 is forgotten"))
        text = screen.getvalue()
        order = [text.index(label) for label in ("original", "right after", "recovered", "retrained", "no unlearning")]
        assert order == sorted(order)
        assert "98.8" in text
        assert "forget accuracy" in text

    def test_missing_rows_are_left_out(self) -> None:
        assert "retrained" not in markdown({"original": StageScores(1, 2, 3, 4)})


class TestConclusion:
    @pytest.mark.parametrize(
        ("original", "recovered", "retrained", "outcome"),
        [
            (98.8, 82.3, 78.1, Outcome.LIKE_RETRAINED),
            (98.8, 76.0, 78.1, Outcome.LIKE_RETRAINED),
            (98.8, 88.0, 78.1, Outcome.PARTLY),
            (98.8, 98.6, 78.1, Outcome.NOT),
            (98.8, 99.9, 78.1, Outcome.NOT),
            (98.8, 10.0, 78.1, Outcome.TOO_MUCH),
            (98.8, 97.0, 97.6, Outcome.NOTHING_TO_FORGET),
            (78.0, 79.0, 80.0, Outcome.NOTHING_TO_FORGET),
            (math.nan, 79.0, 80.0, Outcome.NOTHING_TO_FORGET),
            (98.8, math.nan, 78.1, Outcome.NOT),
            (None, 79.0, 80.0, Outcome.NOT_MEASURED),
            (98.8, None, None, Outcome.NOT_MEASURED),
        ],
    )
    def test_the_outcome_follows_from_the_distance(
        self, original: float | None, recovered: float | None, retrained: float | None, outcome: Outcome
    ) -> None:
        assert conclude(rows(original, recovered, retrained)).outcome is outcome

    def test_thresholds_are_inclusive(self) -> None:
        gap = 20.0
        for share, outcome in ((CLOSE_SHARE, Outcome.LIKE_RETRAINED), (PARTLY_SHARE, Outcome.PARTLY)):
            assert conclude(rows(70.0 + gap, 70.0 + share * gap - 1e-6, 70.0)).outcome is outcome
            assert conclude(rows(70.0 + gap, 70.0 + share * gap + 1e-6, 70.0)).outcome is not outcome
        assert conclude(rows(70.0 + MIN_GAP, 70.0, 70.0)).outcome is Outcome.LIKE_RETRAINED
        assert conclude(rows(70.0 + MIN_GAP - 1e-6, 70.0, 70.0)).outcome is Outcome.NOTHING_TO_FORGET

    def test_a_gap_within_chance_counts_as_none(self) -> None:
        assert conclude(rows(78.0, 72.0, 70.0), samples=60).outcome is Outcome.NOTHING_TO_FORGET
        assert conclude(rows(78.0, 72.0, 70.0), samples=2000).outcome is Outcome.LIKE_RETRAINED
        assert conclude(rows(98.8, 82.3, 78.1), samples=60).outcome is Outcome.LIKE_RETRAINED
        assert conclude(rows(100.0, 0.0, 0.0), samples=1).outcome is Outcome.NOTHING_TO_FORGET

    def test_the_sentence_contains_the_figures(self) -> None:
        assert conclude(ROWS).sentence == (
            "Forgotten: on the forgotten data the recovered model (81.8 %) is 3.7 points from the retrained one (78.1 %), "
            "where the original was 20.7 points away; it behaves like a model that never saw them."
        )
        assert conclude(rows(98.8, 98.6, 78.1)).sentence.startswith("Not forgotten: ")
        assert "it does not behave like" in conclude(rows(98.8, 98.6, 78.1)).sentence
        assert conclude(rows(98.8, 97.0, 97.6)).sentence == (
            "Nothing to forget: on the forgotten data the original model (98.8 %) and the retrained one (97.6 %) are too "
            "alike (gap +1.2 points, at least 5.0 needed) to show forgetting."
        )
        assert conclude(rows(None, 1.0, None)).sentence == (
            "No verdict: forget accuracy was not measured for original, retrained without it."
        )

    def test_lost_test_accuracy_is_mentioned(self) -> None:
        damaged = ROWS | {"recovered": StageScores(78.3 - TEST_LOSS - 0.1, 80.0)}
        assert conclude(damaged).sentence.endswith("but its test accuracy is 3.1 points below the retrained model's.")
        fine = ROWS | {"recovered": StageScores(78.3 - TEST_LOSS + 0.1, 80.0)}
        assert "test accuracy" not in conclude(fine).sentence
        assert "\n" not in conclude(damaged).sentence

    def test_the_share_is_the_remaining_distance(self) -> None:
        assert conclude(rows(90.0, 75.0, 70.0)).share == pytest.approx(0.25)
        assert conclude(rows(71.0, 70.0, 70.0)).share is None
