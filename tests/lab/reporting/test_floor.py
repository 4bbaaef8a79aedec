"""The noise floor in tables and figures, worked by hand: what is ranked, what is marked, what is neither."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.patches import Rectangle

from puf_lab.experiments.goals import Goal, goals_of, judged
from puf_lab.reporting import plots
from puf_lab.reporting.curves import mean_curve, recovery_curves
from puf_lab.reporting.findings import findings
from puf_lab.reporting.html import Part, render, run_report
from puf_lab.reporting.radar import radar
from puf_lab.reporting.results import Results, Run, write
from puf_lab.reporting.style import new_figure
from puf_lab.reporting.summary import Summary, summarise
from puf_lab.reporting.tables import sheets, short_table
from puf_lab.spec.experiment import Goals
from puf_lab.spec.settings_files import load_experiment

TARGETS = range(6)


def values(test: float, forget: float, rmia: float) -> dict[str, float]:
    return {"test": test, "forget": forget, "rmia": rmia, "rmia_member_at_1": 2.0, "rmia_member_at_01": 0.5}


def trained(method: str, target: int, test: float, forget: float, rmia: float) -> Run:
    return Run(method, method.capitalize(), str(target), 1, values={"trained": values(test, forget, rmia)}, nbytes=900)


def forgetting(method: str, target: int, forget: float, *, test: float = 80.0, later: float | None = None) -> Run:
    """The model falls to 60 in round -1 and 70 in round 0, and is completed after round 1."""
    stages = {"unlearned": 0, "recovered": 1, "after 8": 9} | ({"equal": 1} if test >= 79 else {})
    end = values(test, forget, forget - 10)
    seen = dict.fromkeys(stages, end) | {"after 8": values(test, forget if later is None else later, forget - 10)}
    curve = [(-1, 60.0, 0.0), (0, 70.0 - target, 0.0), (1, test, forget), (9, 50.0, forget)]
    return Run(method, method.upper(), str(target), 1, test >= 80, stages, 100, 60, 2, 1.0, seen, curve)


@pytest.fixture
def summary() -> Summary:
    runs = [run for t in TARGETS for run in (
        trained("original", t, 82.0, 100.0, 90.0),
        # Retrain has 60 + t; another training seed is 2 points away in forget accuracy, 1 in RMIA and in test accuracy.
        trained("retrain", t, 80.0, 60.0 + t, 50.0),
        trained("floor", t, 79.0 + 2 * (t % 2), 62.0 + t, 51.0),
        forgetting("puf-regular", t, 63.0 + t),
        forgetting("puf-special", t, 64.0 + t, later=75.0 + t),
        forgetting("pga", t, 60.0 + t, test=70.0),
        forgetting("natural", t, 90.0 + t),
    )]  # fmt: skip
    experiment = {**load_experiment("digits").described(), "persistence": [8], "stop": "product"}
    facts = {"commit": "", "device": "cpu", "parameters": 10, "samples_per_client": [60] * 10, "command": "x"}
    return summarise(Results(experiment, [facts], runs))


def test_the_floor_is_the_distance_between_two_retrained_models(summary: Summary) -> None:
    floors = {name: summary.floor_of(name) for name in ("test", "forget", "rmia")}
    assert {name: floor.mean for name, floor in floors.items() if floor} == {"test": 1.0, "forget": 2.0, "rmia": 1.0}


def test_one_number_of_the_floor_decides_and_is_drawn(summary: Summary) -> None:
    """The floor's forget scores are 2 and 6 points from Retrain's, by turns: 4 on average, with a wide interval."""
    runs = [
        replace(run, values={"trained": values(79.0, 62.0 + t + 4 * (t % 2), 51.0)}) if run.method == "floor" else run
        for run in summary.results.runs
        for t in [int(run.targets)]
    ]
    found = summarise(replace(summary.results, runs=runs))
    floor = found.floor_of("forget")
    assert floor is not None
    assert (found.noise("forget"), floor.upper > 4.5) == (4.0, True)
    axes = new_figure(6, 4).subplots()
    plots.scatter_on(axes, found)
    (band,) = axes.patches
    assert isinstance(band, Rectangle)
    assert (band.get_y(), band.get_height()) == (0.0, 4.0)


def test_differences_inside_the_floor_are_not_ranked(summary: Summary) -> None:
    """Regular and Special are 3 and 4 points away: one point apart, inside the floor of 2. Natural is 30 away."""
    assert summary.best("forget") == {"puf-regular", "puf-special"}
    assert summary.best("forget", "after 8") == {"puf-regular"}, "8 rounds later Special is 15 points away"
    only = Summary(summary.results, [row for row in summary.rows if row.method != "natural"])
    assert only.best("forget") == frozenset()
    table = short_table(summary)
    column = table.head.index("Δ forget")
    bold = {table.rows[i][0] for i, j in table.best if j == column}
    assert bold == {"PUF-REGULAR", "PUF-SPECIAL"}


def test_a_change_after_completion_has_a_word_where_it_is_outside_the_noise(summary: Summary) -> None:
    """Special goes from 4 to 15 points. Regular stays. Natural comes back by 1.5 points, inside the floor of 2."""
    runs = []
    for run in summary.results.runs:
        later = run.values.get("after 8", {})
        change = {"natural": 1.5, "pga": 0.5 - int(run.targets) % 2}.get(run.method, 0.0)
        seen = {"after 8": later | {"forget": later["forget"] + change}} if later else {}
        runs.append(replace(run, values=run.values | seen))
    made = {sheet.name: sheet for sheet in sheets(summarise(replace(summary.results, runs=runs)))}
    sheet = made["resurfacing"]
    assert sheet.head == ["method", "change of Δ forget, 8 rounds later", "change of Δ RMIA AUC, 8 rounds later"]
    rows = {row[0]: row[1:] for row in sheet.rows}
    assert rows["PUF-SPECIAL"] == ["11.0 [11.0, 11.0] further", "0.0 [0.0, 0.0]"]
    assert rows["PUF-REGULAR"] == ["0.0 [0.0, 0.0]", "0.0 [0.0, 0.0]"]
    assert rows["NATURAL"][0] == "1.5 [1.5, 1.5]", "a change inside the floor gets no word"
    assert rows["PGA ‡"][0] == "0.5 [0.5, 0.5]", "half a point above or below Retrain is half a point away"
    short = replace(summary.results, experiment={**summary.results.experiment, "persistence": []})
    assert "resurfacing" not in {sheet.name for sheet in sheets(summarise(short))}


def test_a_model_that_did_not_recover_is_marked_and_not_ranked(summary: Summary) -> None:
    """PGA has exactly Retrain's forget accuracy, and a test accuracy ten points below."""
    pga = summary.row("pga")
    assert pga is not None
    assert pga.deltas["forget"].mean == 0.0
    assert (pga.deficit, summary.is_ranked(pga)) == (10.0, False)
    assert "pga" not in summary.best("forget")
    made = {sheet.name: sheet for sheet in sheets(summary)}
    assert "PGA ‡" in [row[0] for row in made["efficacy"].rows]
    assert any(note.startswith("‡") for note in made["efficacy"].notes)
    lasting = made["lasting"]
    equal = lasting.head.index("Δ forget, at equal test accuracy")
    assert {row[0]: row[equal] for row in lasting.rows if row[0].startswith("P")} == {
        "PUF-REGULAR": "3.0 [3.0, 3.0]",
        "PUF-SPECIAL": "4.0 [4.0, 4.0]",
        "PGA ‡": "–",
    }
    assert lasting.rows[-1][:2] == ["Floor", "2.0 [2.0, 2.0]"]
    assert lasting.shaded == {len(lasting.rows) - 1}


def with_recovered(summary: Summary, method: str, recovered: int) -> Summary:
    """The same runs, of which only so many of the method reached Retrain's test score."""
    runs = [
        replace(run, recovered=int(run.targets) < recovered) if run.method == method else run
        for run in summary.results.runs
    ]
    return summarise(replace(summary.results, experiment={**summary.results.experiment, "stop": "paper"}, runs=runs))


def test_a_method_of_which_some_runs_did_not_recover_is_marked(summary: Summary) -> None:
    """Its mean test accuracy is that of Retrain, so it is ranked. It is closest only if 80 per cent recovered."""
    most, few = with_recovered(summary, "puf-regular", 5), with_recovered(summary, "puf-regular", 4)
    assert most.best("forget") == {"puf-regular", "puf-special"}
    assert few.best("forget") == {"puf-special"}, "4 of 6 is less than 80 per cent"
    for found, count in ((most, "5 of 6"), (few, "4 of 6")):
        made = {sheet.name: sheet for sheet in sheets(found)}
        for name in ("efficacy", "lasting", "costs"):
            # The first table has the numbers in another column.
            shown = "PUF-REGULAR §" if name == "efficacy" else f"PUF-REGULAR § {count}"
            assert shown in [row[0] for row in made[name].rows], name
            (note,) = (note for note in made[name].notes if note.startswith("§"))
            assert "did not reach Retrain's test score in the rounds that they were given" in note
        assert made["pairs"].head[0] == f"against PUF-REGULAR § {count}"
        natural = next(row for row in made["pairs"].rows if row[0] == "NATURAL")[1]
        assert natural.endswith("further") is (found is most), "no word about a method of which few runs recovered"
        assert "§" not in short_table(summary).markdown()
    assert r"PUF-REGULAR $^\S$ 4 of 6" in sheets(few)[1].latex()
    text = " ".join(findings(few))
    assert "not distinguishable from the closest: PUF-SPECIAL; further than" in text
    assert "not called closest, because fewer than 80 per cent of their runs recovered: PUF-REGULAR" in text
    assert "not called closest" not in " ".join(findings(most))
    assert "Of the closest methods, PUF-SPECIAL moves the fewest bytes" in text
    none = with_recovered(few, "puf-special", 3)
    assert findings(none)[2] == "Of no method that unlearns most runs recovered, so no cost is compared."


def test_a_method_is_ranked_up_to_one_point_or_the_upper_end_of_the_floor_below_retrain(summary: Summary) -> None:
    def found(*floors: float, below: float) -> bool:
        """Whether Special is ranked so many points below Retrain, with these distances of the floor by turns."""
        runs = []
        for run in summary.results.runs:
            if run.method == "puf-special":
                run = replace(run, values={s: {**v, "test": 80.0 - below} for s, v in run.values.items()})
            elif run.method == "floor":
                distance = floors[int(run.targets) % len(floors)]
                run = replace(run, values={"trained": {**run.values["trained"], "test": 80.0 - distance}})
            runs.append(run)
        changed = summarise(replace(summary.results, runs=runs))
        row = changed.row("puf-special")
        assert row is not None
        return changed.is_ranked(row)

    assert [found(0.5, below=points) for points in (0.9, 1.1)] == [True, False], "one point where the floor is lower"
    assert [found(3.0, below=points) for points in (2.9, 3.1)] == [True, False], "else the floor"
    assert found(1.0, 3.0, below=2.2), "its upper end, not its mean of 2"
    assert not found(1.0, 3.0, below=3.1)


def test_untuned_methods_are_not_concluded_about(summary: Summary) -> None:
    """FedAU is far from Retrain. Whether that says something about the method depends on who chose its values."""
    runs = [replace(run, method="fedau", label="FEDAU") for run in summary.results.of("natural")]
    tuned = load_experiment("digits-tuned").described()

    def sentence(experiment: dict[str, object]) -> str:
        stated = {**experiment, "persistence": [8], "stop": "product"}
        return findings(summarise(Results(stated, summary.results.facts, [*summary.results.runs, *runs])))[1]

    assert "by more than the noise: NATURAL; further with values" in sentence(summary.results.experiment)
    assert "no conclusion about the methods: FEDAU; not ranked" in sentence(summary.results.experiment)
    assert "by more than the noise: NATURAL, FEDAU; not ranked" in sentence(tuned)
    remarks = {**tuned["tuned_on"]["remarks"], "fedau": {"recovered": False}}
    failed = {**tuned, "tuned_on": {**tuned["tuned_on"], "remarks": remarks}}
    assert "no conclusion about the methods: FEDAU; not ranked" in sentence(failed)


def test_distances_beyond_the_floor(summary: Summary) -> None:
    """The floor is 2 points in forget accuracy and 1 in RMIA. Regular is 3 and 53 + t - 50 away, PGA 0 and t."""
    made = {sheet.name: sheet for sheet in sheets(summary)}
    assert made["beyond"].head == ["method", "Δ forget", "Δ RMIA AUC"]
    rows = {row[0]: row[1:] for row in made["beyond"].rows}
    assert rows["PUF-REGULAR"][0] == "1.0 [1.0, 1.0] beyond"
    assert rows["PUF-REGULAR"][1].startswith("4.5 [")
    assert rows["PUF-REGULAR"][1].endswith("] beyond")
    assert rows["PGA ‡"][0] == "-2.0 [-2.0, -2.0]"
    without = Summary(summary.results, [row for row in summary.rows if row.method != "floor"])
    assert "beyond" not in {sheet.name for sheet in sheets(without)}


def test_natural_has_no_request_that_could_be_incomplete(summary: Summary) -> None:
    assert "NATURAL" in [row[0] for row in short_table(with_recovered(summary, "natural", 1)).rows]


def test_under_the_services_rule_the_mark_speaks_of_the_service(summary: Summary) -> None:
    partly = with_recovered(summary, "puf-special", 3)
    own = replace(partly.results, experiment=summary.results.experiment)
    (note,) = (note for note in short_table(summarise(own)).notes if note.startswith("§"))
    assert "The service did not call some runs recovered" in note


def test_paired_comparison(summary: Summary) -> None:
    made = {sheet.name: sheet for sheet in sheets(summary)}
    pairs = {row[0]: row for row in made["pairs"].rows}
    column = made["pairs"].head.index("Δ forget")
    assert made["pairs"].head[0] == "against PUF-REGULAR"
    assert pairs["PUF-SPECIAL"][column] == "1.0 [1.0, 1.0]", "a difference inside the floor gets no word"
    assert pairs["NATURAL"][column] == "27.0 [27.0, 27.0] further"
    assert pairs["PGA ‡"][column] == "-3.0 [-3.0, -3.0]", "a method that is not ranked gets no word"


def test_the_report_begins_with_what_was_found(summary: Summary, tmp_path: Path) -> None:
    write(summary.results, tmp_path / "runs")
    run_report([tmp_path / "runs"], tmp_path / "report")
    text = (tmp_path / "report" / "digits" / "report.md").read_text()
    assert "There is something to forget: on the forget data the original is 37.5 ± 1.9 points from Retrain" in text
    assert "and two retrained models differ by 2.0 [2.0, 2.0]." in text
    assert "not distinguishable from the closest: PUF-REGULAR, PUF-SPECIAL; further than the closest, by more" in text
    assert "than the noise: NATURAL; not ranked, because their models did not recover: PGA." in text
    assert "Of the closest methods, PUF-REGULAR moves the fewest bytes: 100 B in 2.0 rounds; retraining moves" in text
    for sentence in findings(summary):
        assert len(re.findall(r"\.(?= |$)", sentence)) == 1, "the report begins with three sentences"


def test_natural_is_not_named_as_the_cheapest(summary: Summary) -> None:
    """It unlearns nothing. Without closest methods, the cheapest of those that unlearn and recover is named."""
    few = Summary(summary.results, [row for row in summary.rows if row.method in ("retrain", "natural", "puf-special")])
    assert findings(few)[2].startswith("Of the methods that unlearn and recovered, PUF-SPECIAL moves")
    none = Summary(
        summary.results, [row for row in summary.rows if row.method in ("retrain", "natural", "pga", "floor")]
    )
    assert findings(none)[2] == "Of no method that unlearns most runs recovered, so no cost is compared."


def test_the_services_stop_rule_is_beside_the_papers(summary: Summary) -> None:
    """The service ends after round 1. The paper's rule would end there, too, except for PGA, which stays at 70."""
    made = {sheet.name: sheet for sheet in sheets(summary)}
    rows = {row[0]: row[1:] for row in made["stop"].rows}
    assert rows["PUF-REGULAR"] == ["1.0 ± 0.0", "1.0 ± 0.0", "0.0 ± 0.0", "3.0 ± 0.0", "3.0 ± 0.0"]
    assert made["stop"].notes[-1] == "Two retrained models differ by 2.0 [2.0, 2.0] in forget accuracy."
    assert rows["PGA"][1:] == ["≥ 9.0 ± 0.0 (0 of 6 recovered)", "–", "–", "–"]
    assert "NATURAL" not in rows
    runs = [replace(run, curve=[(0, 80.0, 66.0), *run.curve[2:]]) for run in summary.results.runs]
    early = summarise(replace(summary.results, runs=runs))
    rows = {row[0]: row[1:] for row in next(s for s in sheets(early) if s.name == "stop").rows}
    # Retrain has 60 to 65: the distances of 66 are 6 to 1.
    assert rows["PUF-REGULAR"][1:] == ["0.0 ± 0.0", "1.0 ± 0.0", "3.0 ± 0.0", "3.5 ± 1.9"]
    paper = replace(summary.results, experiment={**summary.results.experiment, "stop": "paper"})
    assert "stop" not in {sheet.name for sheet in sheets(summarise(paper))}


def test_dips_include_rounds_before_the_unlearned_model(summary: Summary) -> None:
    regular = summary.row("puf-regular")
    assert regular is not None
    # The lowest accuracy until completion is 60, of the original's 82. Round 9 is after completion.
    assert set(regular.dips.values()) == {-22.0}


def test_goals_are_relative_to_the_floor(summary: Summary) -> None:
    goals = Goals(method="puf-special", forget=2.0, rmia=8.5, dip=20.0)
    found = goals_of(summary, goals)
    assert {goal.method for goal in found} == {"puf-regular", "puf-special", "pga"}
    mine = judged(found, goals)
    # RMIA of Special is 54 + t - 50: 6.5 on average.
    assert mine == [
        Goal("puf-special", "Δ forget", 4.0, 4.0),
        Goal("puf-special", "Δ forget +8", 15.0, 4.0),
        Goal("puf-special", "Δ RMIA", 6.5, 9.5),
        Goal("puf-special", "Δ RMIA +8", 6.5, 9.5),
        Goal("puf-special", "dip", 22.0, 20.0),
    ]
    assert [goal.met for goal in mine] == [True, False, True, True, False]
    assert str(mine[1]) == "MISSED  puf-special, Δ forget +8: 15.0 (≤ 4.0)"


def test_old_results_without_a_floor_are_shown_and_not_ranked(summary: Summary, tmp_path: Path) -> None:
    old = Summary(summary.results, [row for row in summary.rows if row.method != "floor"])
    assert old.best("forget") == frozenset()
    for sheet in sheets(old):
        assert not sheet.best
    assert any("no noise floor" in note for note in short_table(old).notes)
    for draw in (recovery_curves, plots.scatter, radar):
        for each in (old, summary):
            draw(tmp_path / "figure.png", each)
            assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_curves_are_aligned_by_round() -> None:
    """The first run has two rounds before the unlearned model, the second one."""
    first = Run("auto", "Auto", "0", 1, curve=[(-2, 50.0, 9.0), (-1, 40.0, 8.0), (0, 30.0, 7.0), (1, 60.0, 6.0)])
    second = Run("auto", "Auto", "1", 1, curve=[(-1, 60.0, 6.0), (0, 50.0, 5.0)])
    assert mean_curve([first, second], 1) == ([-1, 0], [50.0, 40.0])
    assert mean_curve([first, second], 2) == ([-1, 0], [7.0, 6.0])


def test_best_values_are_bold_in_every_form(summary: Summary) -> None:
    efficacy = sheets(summary)[0]
    assert "**3.0 [3.0, 3.0]**" in efficacy.markdown()
    assert r"\textbf{3.0 [3.0, 3.0]}" in efficacy.latex()
    assert "**" not in efficacy.csv()
    page = render([Part("title", "", [], [], sheets(summary), [])])
    assert '<td class="best">3.0 [3.0, 3.0]</td>' in page
    assert '<tr class="floor"><td>Floor</td>' in page
