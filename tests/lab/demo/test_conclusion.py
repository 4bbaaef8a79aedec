"""The demo's table and verdict."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from puf_common.receipts.evidence import Verdict
from puf_lab.demo.conclusion import TEST_LOSS, Stage, StageScores, conclude, distances, markdown, rich_table

ROWS: dict[Stage, StageScores] = {
    "retrained": StageScores(78.3, 78.1, 50.0, 55.0, 48.0),
    "retrained again": StageScores(78.0, 76.0, 53.0, 54.0, 49.0),
    "original": StageScores(79.0, 98.8, 84.1, 90.0, 65.0),
    "unlearned": StageScores(41.0, 28.0),
    "recovered": StageScores(78.6, 81.8, 52.0, 57.0, 51.0),
    "natural": StageScores(78.8, 98.6, 80.0, 88.0, 64.0),
}


def concluded(counts: tuple[int, int] = (60, 800), **recovered: float) -> Verdict | None:
    rows = ROWS | {"recovered": replace(ROWS["recovered"], **recovered)}
    return conclude(rows, samples=counts[0], unseen=counts[1]).verdict


class TestTables:
    def test_markdown_is_aligned(self) -> None:
        assert markdown(ROWS) == (
            "| model                     | test accuracy % | forget accuracy % | MIA Song % | MIA Yeom % | above unseen % |\n"
            "| ------------------------- | --------------: | ----------------: | ---------: | ---------: | -------------: |\n"
            "| original                  |            79.0 |              98.8 |       84.1 |       90.0 |           65.0 |\n"
            "| right after unlearning    |            41.0 |              28.0 |          – |          – |              – |\n"
            "| recovered                 |            78.6 |              81.8 |       52.0 |       57.0 |           51.0 |\n"
            "| retrained without it      |            78.3 |              78.1 |       50.0 |       55.0 |           48.0 |\n"
            "| retrained, another seed   |            78.0 |              76.0 |       53.0 |       54.0 |           49.0 |\n"
            "| no unlearning, trained on |            78.8 |              98.6 |       80.0 |       88.0 |           64.0 |\n"
            "| recovered − retrained     |            +0.3 |              +3.7 |       +2.0 |       +2.0 |           +3.0 |\n"
            "| another seed − retrained  |            -0.3 |              -2.1 |       +3.0 |       -1.0 |           +1.0 |\n"
        )

    def test_rows_are_in_the_order_of_events(self) -> None:
        screen = io.StringIO()
        Console(file=screen, width=110).print(rich_table(ROWS, title="site-3 is forgotten"))
        text = screen.getvalue()
        labels = ("original", "right after", "recovered", "retrained without", "another seed", "no unlearning")
        order = [text.index(label) for label in labels]
        assert order == sorted(order)
        assert "98.8" in text
        assert "forget accuracy" in text
        assert text.index("recovered − retrained") > order[-1]

    def test_missing_rows_are_left_out(self) -> None:
        assert "retrained" not in markdown({"original": StageScores(1, 2, 3, 4, 5)})


class TestVerdict:
    def test_every_figure_counts(self) -> None:
        assert concluded() is Verdict.FORGOTTEN
        for figure, value in {"forget": 98.0, "song": 80.0, "yeom": 85.0, "ranks": 64.0}.items():
            assert concluded((60, 800), **{figure: value}) is Verdict.STILL_KNOWN
        # Forgotten so much that it shows.
        for figure, value in {"forget": 40.0, "song": 20.0, "yeom": 20.0, "ranks": 30.0}.items():
            assert concluded((60, 800), **{figure: value}) is Verdict.STILL_KNOWN
        assert concluded(forget=math.nan) is Verdict.STILL_KNOWN

    def test_a_distance_is_tolerated_within_chance_or_the_noise_of_another_seed(self) -> None:
        # A standard error of 78.1 % on 60 samples is 5.4 points, and of the ranks 3.9 points; 2.5 of them are tolerated.
        found = {d.name: d for d in distances(ROWS, samples=60, unseen=800)}
        assert found["forget accuracy"].chance == pytest.approx(13.5, abs=0.1)
        assert found["above unseen"].chance == pytest.approx(9.7, abs=0.1)
        assert concluded(forget=78.1 + 13.4) is Verdict.FORGOTTEN
        assert concluded(forget=78.1 + 13.6) is Verdict.STILL_KNOWN
        # With many samples only the noise is left: 2.1 points.
        many, close = (10**6, 10**6), {"song": 50.0, "yeom": 55.0, "ranks": 48.0}
        assert concluded(many, **close, forget=78.1 + 2.0) is Verdict.FORGOTTEN
        assert concluded(many, **close, forget=78.1 + 2.3) is Verdict.STILL_KNOWN

    def test_a_model_that_never_knew_the_data_has_nothing_to_forget(self) -> None:
        rows = ROWS | {"original": ROWS["retrained"], "recovered": ROWS["retrained"]}
        found = conclude(rows, samples=60, unseen=800)
        assert found.verdict is Verdict.NOTHING_CHANGED

    def test_few_samples_do_not_tell_the_models_apart(self) -> None:
        assert concluded((5, 800)) is Verdict.TOO_FEW

    def test_a_model_that_did_not_change_is_not_forgotten(self) -> None:
        rows = ROWS | {"recovered": ROWS["original"]}
        for samples in (5, 60, 1000):
            assert conclude(rows, samples=samples, unseen=800).verdict is not Verdict.FORGOTTEN

    def test_without_a_figure_there_is_no_verdict(self) -> None:
        rows = ROWS | {"recovered": replace(ROWS["recovered"], yeom=None)}
        found = conclude(rows, samples=60, unseen=800)
        assert found.verdict is None
        assert found.sentence == "Figures are missing for: recovered."

    def test_the_sentence_contains_the_figures_and_the_noise(self) -> None:
        assert conclude(ROWS, samples=60, unseen=800).sentence == (
            "As close to the retrained model as chance and another seed allow, in points: forget accuracy +3.7 (original "
            "+20.7, other seed -2.1), MIA Song +2.0 (original +34.1, other seed +3.0), MIA Yeom +2.0 (original +35.0, other "
            "seed -1.0), above unseen +3.0 (original +17.0, other seed +1.0)."
        )

    def test_lost_test_accuracy_is_mentioned(self) -> None:
        lost = ROWS | {"recovered": replace(ROWS["recovered"], test=78.3 - TEST_LOSS - 0.1)}
        sentence = conclude(lost, samples=60, unseen=800).sentence
        assert sentence.endswith("Its test accuracy is 3.1 points below the retrained model's.")
        fine = ROWS | {"recovered": replace(ROWS["recovered"], test=78.3 - TEST_LOSS + 0.1)}
        assert "test accuracy" not in conclude(fine, samples=60, unseen=800).sentence
