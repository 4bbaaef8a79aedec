"""The service's stop rule beside the paper's, on the same runs: when each ends recovery, and how far the model then is."""

from __future__ import annotations

from puf_lab.evaluation.comparison import Mean, Recovery, summarise_recoveries
from puf_lab.reporting.results import Run
from puf_lab.reporting.sheet import MISSING, Sheet
from puf_lab.reporting.summary import Summary, SummaryRow


def stop_rules(summary: Summary) -> Sheet | None:
    """The table, or None where the service does not decide about completion."""
    if summary.results.experiment.get("stop") != "product":
        return None
    rows = [_cells(summary, row) for row in summary.recovering if row.method != "natural"]
    if not rows:
        return None
    head = ["method", "rounds: service", "paper", "later than the paper's", "Δ forget: service", "paper"]
    notes = [
        "Service: the rule of the product, which knows scores on hold-out data only. Paper: the first round with at least "
        "the retrained model's test accuracy, in the same run. With ≥ some runs do not reach it in the rounds that were "
        "followed. The other columns are means over the runs that reach it: rounds of the service minus those of the "
        "paper's rule, and the distances in forget accuracy at the two ends.",
    ]
    floor = summary.floor_of("forget")
    if floor:
        notes.append(f"Two retrained models differ by {floor.text()} in forget accuracy.")
    return Sheet("stop", "The service's stop rule and the paper's", head, rows, notes)


def _cells(summary: Summary, row: SummaryRow) -> list[str]:
    retrained = {run.cell: run.values["trained"] for run in summary.results.of("retrain")}
    runs = summary.results.of(row.method)
    ends = [(run, _by_paper(run, retrained[run.cell]["test"])) for run in runs]
    reached = [(run, end) for run, end in ends if end is not None]
    paper = [Recovery(_last(run), False) if end is None else Recovery(end[0], True) for run, end in ends]
    cells = [row.label, str(row.recovery), str(summarise_recoveries(paper))]
    if not reached:
        return [*cells, MISSING, MISSING, MISSING]
    later = Mean.of([run.stages["recovered"] - end[0] for run, end in reached])
    service = Mean.of([abs(run.values["recovered"]["forget"] - retrained[run.cell]["forget"]) for run, _ in reached])
    theirs = Mean.of([abs(end[1] - retrained[run.cell]["forget"]) for run, end in reached])
    return [*cells, str(later), str(service), str(theirs)]


def _by_paper(run: Run, goal: float) -> tuple[int, float] | None:
    """Round and forget accuracy of the first model at the goal, from the unlearned model on."""
    return next(((number, forget) for number, test, forget in run.curve if number >= 0 and test >= goal), None)


def _last(run: Run) -> int:
    return max(number for number, *_ in run.curve)
