from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from puf_lab.demo.outcome import (
    CLOSE_SHARE,
    MIN_GAP,
    PARTLY_SHARE,
    TEST_LOSS,
    Measured,
    Outcome,
    Stage,
    markdown,
    rich_table,
)
from puf_lab.demo.outcome import verdict as judge

ROWS: dict[Stage, Measured] = {
    "retrained": Measured(78.3, 78.1, 50.0, 55.0),
    "original": Measured(79.0, 98.8, 84.1, 90.0),
    "unlearned": Measured(41.0, 28.0),
    "recovered": Measured(78.6, 81.8, 52.0, None),
    "natural": Measured(78.8, 98.6, 80.0, 88.0),
}


def rows(original: float | None, recovered: float | None, retrained: float | None) -> dict[Stage, Measured]:
    return {
        "original": Measured(forget=original),
        "recovered": Measured(forget=recovered),
        "retrained": Measured(forget=retrained),
    }


class TestTables:
    def test_markdown(self) -> None:
        assert markdown(ROWS) == (
            "| model                     | test accuracy % | forget accuracy % | MIA Song % | MIA Yeom % |\n"
            "| ------------------------- | --------------: | ----------------: | ---------: | ---------: |\n"
            "| original                  |            79.0 |              98.8 |       84.1 |       90.0 |\n"
            "| right after unlearning    |            41.0 |              28.0 |          – |          – |\n"
            "| recovered                 |            78.6 |              81.8 |       52.0 |          – |\n"
            "| retrained without it      |            78.3 |              78.1 |       50.0 |       55.0 |\n"
            "| no unlearning, trained on |            78.8 |              98.6 |       80.0 |       88.0 |\n"
        )

    def test_terminal(self) -> None:
        screen = io.StringIO()
        Console(file=screen, width=100).print(rich_table(ROWS, title="site-3 is forgotten"))
        text = screen.getvalue()
        order = [text.index(label) for label in ("original", "right after", "recovered", "retrained", "no unlearning")]
        assert order == sorted(order)
        assert "98.8" in text
        assert "forget accuracy" in text

    def test_rows_that_are_missing_are_left_out(self) -> None:
        assert "retrained" not in markdown({"original": Measured(1, 2, 3, 4)})


class TestVerdict:
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
    def test_outcomes(
        self, original: float | None, recovered: float | None, retrained: float | None, outcome: Outcome
    ) -> None:
        assert judge(rows(original, recovered, retrained)).outcome is outcome

    def test_thresholds_are_inclusive(self) -> None:
        gap = 20.0
        for share, outcome in ((CLOSE_SHARE, Outcome.LIKE_RETRAINED), (PARTLY_SHARE, Outcome.PARTLY)):
            assert judge(rows(70.0 + gap, 70.0 + share * gap - 1e-6, 70.0)).outcome is outcome
            assert judge(rows(70.0 + gap, 70.0 + share * gap + 1e-6, 70.0)).outcome is not outcome
        assert judge(rows(70.0 + MIN_GAP, 70.0, 70.0)).outcome is Outcome.LIKE_RETRAINED
        assert judge(rows(70.0 + MIN_GAP - 1e-6, 70.0, 70.0)).outcome is Outcome.NOTHING_TO_FORGET

    def test_a_gap_within_chance_is_no_gap(self) -> None:
        assert judge(rows(78.0, 72.0, 70.0), samples=60).outcome is Outcome.NOTHING_TO_FORGET
        assert judge(rows(78.0, 72.0, 70.0), samples=2000).outcome is Outcome.LIKE_RETRAINED
        assert judge(rows(98.8, 82.3, 78.1), samples=60).outcome is Outcome.LIKE_RETRAINED
        assert judge(rows(100.0, 0.0, 0.0), samples=1).outcome is Outcome.NOTHING_TO_FORGET

    def test_the_sentence_carries_the_figures(self) -> None:
        assert judge(ROWS).sentence == (
            "Forgotten: on the forgotten data the recovered model (81.8 %) is 3.7 points from the retrained one (78.1 %), "
            "where the original was 20.7 points away; it behaves like a model that never saw them."
        )
        assert str(judge(rows(98.8, 98.6, 78.1))).startswith("Not forgotten: ")
        assert "it does not behave like" in judge(rows(98.8, 98.6, 78.1)).sentence
        assert judge(rows(98.8, 97.0, 97.6)).sentence == (
            "Nothing to forget: on the forgotten data the original model (98.8 %) and the retrained one (97.6 %) are too "
            "alike (gap +1.2 points, at least 5.0 needed) to show forgetting."
        )
        assert judge(rows(None, 1.0, None)).sentence == (
            "No verdict: forget accuracy was not measured for original, retrained without it."
        )

    def test_a_damaged_model_is_not_praised(self) -> None:
        damaged = ROWS | {"recovered": Measured(78.3 - TEST_LOSS - 0.1, 80.0)}
        assert judge(damaged).sentence.endswith("but its test accuracy is 3.1 points below the retrained model's.")
        fine = ROWS | {"recovered": Measured(78.3 - TEST_LOSS + 0.1, 80.0)}
        assert "test accuracy" not in judge(fine).sentence
        assert "\n" not in judge(damaged).sentence

    def test_the_share_is_the_distance_left(self) -> None:
        assert judge(rows(90.0, 75.0, 70.0)).share == pytest.approx(0.25)
        assert judge(rows(71.0, 70.0, 70.0)).share is None
