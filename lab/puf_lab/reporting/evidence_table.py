"""What is left of the target: the three-sample test, the way from the original, relearning and the backdoor."""

from __future__ import annotations

from collections.abc import Sequence

from puf_lab.evaluation.comparison import Mean
from puf_lab.reporting.marks import full_name, mark_notes
from puf_lab.reporting.results import Run
from puf_lab.reporting.sheet import MISSING, Sheet
from puf_lab.reporting.summary import Summary

# Level of the three-sample test.
_LEVEL = 0.05


def evidence(summary: Summary) -> Sheet | None:
    """The table, or None for results of versions that did not measure it."""
    if "closer" not in summary.rows[0].values:
        return None
    planted = "backdoor" in summary.rows[0].values
    rows = []
    for row in summary.rows:
        runs = summary.results.of(row.method)
        last = max((f"after {n}" for n in summary.results.experiment["persistence"]), key=_number, default="")
        rows.append(
            [
                full_name(summary, row),
                row.values["closer"].text(),
                _verdicts(runs),
                row.values["moved"].text(2),
                row.values["line_rise"].text(2),
                row.values["forget"].text(),
                _later(runs, last, "forget"),
                *([row.values["backdoor"].text(), _later(runs, last, "backdoor")] if planted else []),
            ]
        )
    head = ["method", "closer to Retrain, points", "Retrain / Original / neither", "‖w − w before‖", "rise of the loss"]
    longest = max(summary.results.experiment["persistence"], default=0)
    head += ["forget accuracy", f"{longest} rounds later"]
    head += ["attack success", f"{longest} rounds later"] if planted else []
    notes = [
        "Three-sample test on the forget data: the mean of |p − p of the original| − |p − p of Retrain| over the samples, "
        "with p the confidence in the true label. Above 0 the model is closer to Retrain. Then the numbers of runs that "
        f"are closer to Retrain, to the original, or to neither, by permutation at {100 * _LEVEL:.0f} %.",
        "Rise of the loss: by how much the forget loss between the model before and this model exceeds the straight "
        "line. About 0 means that no barrier separates this model from the one that knew the data. Later rounds are of "
        "retained clients only.",
        *mark_notes(summary),
    ]
    if planted:
        notes.append(
            "Attack success: share of test images with the target's trigger that get the label of its backdoor."
        )
    return Sheet("evidence", "What is left of the target", head, rows, notes)


def _verdicts(runs: Sequence[Run]) -> str:
    end = [run.values["trained" if run.recovered is None else "recovered"] for run in runs]
    clear = [v["closer"] for v in end if v["closer_p"] < _LEVEL]
    to_retrain = sum(value > 0 for value in clear)
    return f"{to_retrain} / {len(clear) - to_retrain} / {len(end) - len(clear)}"


def _later(runs: Sequence[Run], stage: str, metric: str) -> str:
    found = [run.values[stage][metric] for run in runs if stage in run.values]
    return Mean.of(found).text() if found else MISSING


def _number(stage: str) -> int:
    return int(stage.removeprefix("after "))
