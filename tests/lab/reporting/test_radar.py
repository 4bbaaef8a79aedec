"""The radar's axes, worked by hand: the centre is Retrain or the lowest cost, the rim is Original or retraining."""

from __future__ import annotations

import pytest

from puf_common.errors import UsageError
from puf_lab.reporting.radar import floor_spokes, spokes
from puf_lab.reporting.results import Results, Run
from puf_lab.reporting.summary import Summary, summarise
from puf_lab.spec.settings_files import load_experiment

STAGES = {"unlearned": 0, "recovered": 1}


def trained(method: str, test: float, forget: float, rmia: float, *, cost: int = 1000) -> Run:
    return Run(method, method, "0", 1, values={"trained": score(test, forget, rmia)}, nbytes=cost, samples=10 * cost)


def forgetting(method: str, test: float, forget: float, rmia: float, *, cost: int) -> Run:
    end = score(test, forget, rmia)
    return Run(
        method, method, "0", 1, True, STAGES, cost, 10 * cost, 1, 1.0, dict.fromkeys(STAGES, end), [(0, test, forget)]
    )


def score(test: float, forget: float, rmia: float) -> dict[str, float]:
    return {"test": test, "forget": forget, "rmia": rmia}


@pytest.fixture
def summary() -> Summary:
    runs = [
        trained("original", 82.0, 100.0, 90.0),
        trained("retrain", 80.0, 60.0, 50.0),
        trained("floor", 79.0, 62.0, 51.0),
        # One is as far as Original, one is Retrain, one is half way on the other side, one is beyond Original.
        forgetting("natural", 84.0, 100.0, 90.0, cost=10),
        forgetting("federaser", 80.0, 60.0, 50.0, cost=1000),
        forgetting("pga", 60.0, 40.0, 30.0, cost=100),
        forgetting("not", 0.0, 0.0, 0.0, cost=5000),
    ]
    facts = {"commit": "", "device": "cpu", "parameters": 10, "samples_per_client": [60] * 10, "command": "x"}
    return summarise(Results(load_experiment("digits").described(), [facts], runs))


def test_the_centre_is_retrain_and_the_rim_is_the_original(summary: Summary) -> None:
    found = spokes(summary)
    assert list(found) == ["Δ forget", "Δ RMIA AUC", "test deficit", "communication", "computation"]
    assert found["Δ forget"] == [1.0, 0.0, 0.5, 1.0], "the last one is 60 points away where Original is 40"
    assert found["Δ RMIA AUC"] == [1.0, 0.0, 0.5, 1.0]


def test_the_deficit_is_a_share_of_retrains_test_score(summary: Summary) -> None:
    assert spokes(summary)["test deficit"] == [0.0, 0.0, 0.25, 1.0]


def test_the_lowest_cost_is_the_centre_and_retraining_the_rim(summary: Summary) -> None:
    """On a logarithmic scale 100 is half way between 10 and 1000. More than retraining is on the rim."""
    for name in ("communication", "computation"):
        assert spokes(summary)[name] == pytest.approx([0.0, 1.0, 0.5, 1.0])
    cheaper = [row for row in summary.rows if row.method not in ("natural", "not")]
    assert spokes(Summary(summary.results, cheaper))["communication"] == pytest.approx([1.0, 0.0])


def test_the_floor_is_on_the_axes_of_distances(summary: Summary) -> None:
    assert floor_spokes(summary) == [2 / 40, 1 / 40, 0.0, 0.0, 0.0]
    assert floor_spokes(Summary(summary.results, [row for row in summary.rows if row.method != "floor"])) == []


def test_without_the_two_references_there_is_no_radar(summary: Summary) -> None:
    for missing in ("original", "retrain"):
        with pytest.raises(UsageError, match="with Original and Retrain"):
            spokes(Summary(summary.results, [row for row in summary.rows if row.method != missing]))
